"""What a request wants its output to look like: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`.

A guide is tried out before it is let in, in a process of its own (`router/guide_trial.py`), one at a time, and the
verdict is kept for the next request that brings it. So a bad one is a 400 that names its field, and no worker meets it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

import orjson

from slipstream.router.guide_trial import Trials
from slipstream.router.http.errors import HttpError
from slipstream.router.messages import Guide, GuideKind
from slipstream.router.openai.sampling import invalid
from slipstream.router.openai.schema import GenerationFields

MAX_GUIDE_BYTES = 64 << 10
MAX_VERDICTS = 256
MAX_WAITING = 64  # guides that nobody has tried yet, each a second at most
ANY_OBJECT = Guide("json", '{"type":"object"}')

Asked = tuple[str, GuideKind, Any]  # field, kind, and what it says


class Guides:
    """Of one API. Lives on its event loop."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[Guide, str | None] = OrderedDict()
        self._trials = Trials()
        self._turn = asyncio.Lock()
        self._waiting: set[asyncio.Task[None]] = set()  # for their turn, or for a verdict

    async def of(self, body: GenerationFields) -> Guide | None:
        """Raises HttpError 400 for two guides at once or one that no output can follow, 503 if too many wait."""
        asked = asked_for(body)
        if not asked:
            return None
        if len(asked) > 1:
            names = " and ".join(f"'{field}'" for field, _, _ in asked)
            raise invalid(asked[1][0], f"Only one of {names} can be followed at a time.")
        field, kind, value = asked[0]
        guide = guide_from(field, kind, value)
        if guide == ANY_OBJECT:
            return guide
        fault = await self._verdict(guide)
        if fault is not None:
            raise invalid(field, f"'{field}' cannot be followed: {' '.join(fault.split())[:500]}")
        return guide

    async def _verdict(self, guide: Guide) -> str | None:
        if guide not in self._verdicts:
            if len(self._waiting) >= MAX_WAITING:
                raise HttpError(
                    503,
                    "Too many requests bring a schema or a grammar of their own.",
                    kind="server_error",
                    code="overloaded",
                    headers=(("retry-after", "1"),),
                )
            trial = asyncio.create_task(self._try(guide))
            self._waiting.add(trial)
            trial.add_done_callback(self._waiting.discard)
            await asyncio.shield(trial)
        self._verdicts.move_to_end(guide)
        return self._verdicts[guide]

    async def _try(self, guide: Guide) -> None:
        """In a task of its own: a thread goes on when its client has left, and the next guide has to wait for it, or it
        would get the other one's verdict."""
        async with self._turn:
            if guide not in self._verdicts:
                self._verdicts[guide] = await asyncio.to_thread(self._trials.verdict, guide)
        if len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)


def asked_for(body: GenerationFields) -> list[Asked]:
    """All guides that the fields of a request name."""
    asked: list[Asked | None] = []
    form = body.response_format
    if form is not None and form.type == "json_object":
        asked.append(("response_format", "json", ANY_OBJECT.spec))
    elif form is not None and form.json_schema is not None:
        asked.append(("response_format.json_schema.schema", "json", form.json_schema.schema_))
    outputs = body.structured_outputs
    if outputs is not None:
        asked += [
            ("structured_outputs.json", "json", outputs.json_) if outputs.json_ is not None else None,
            ("structured_outputs.json_object", "json", ANY_OBJECT.spec) if outputs.json_object else None,
            ("structured_outputs.regex", "regex", outputs.regex) if outputs.regex is not None else None,
            ("structured_outputs.choice", "choice", outputs.choice) if outputs.choice is not None else None,
            ("structured_outputs.grammar", "grammar", outputs.grammar) if outputs.grammar is not None else None,
        ]
    asked += [
        ("guided_json", "json", body.guided_json) if body.guided_json is not None else None,
        ("guided_regex", "regex", body.guided_regex) if body.guided_regex is not None else None,
        ("guided_choice", "choice", body.guided_choice) if body.guided_choice is not None else None,
        ("guided_grammar", "grammar", body.guided_grammar) if body.guided_grammar is not None else None,
    ]
    return [one for one in asked if one is not None]


def guide_from(field: str, kind: GuideKind, value: Any) -> Guide:
    """Raises HttpError 400 for what is too large."""
    try:
        spec = value if isinstance(value, str) else orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:  # too deep, or a number beyond 64 bits
        raise invalid(field, f"'{field}' cannot be followed: {error}.") from error
    num_bytes = len(spec.encode())
    if num_bytes > MAX_GUIDE_BYTES:
        raise invalid(field, f"'{field}' has {num_bytes} bytes; there may be {MAX_GUIDE_BYTES}.")
    return Guide(kind, spec)
