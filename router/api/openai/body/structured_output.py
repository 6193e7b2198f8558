"""Structured output: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`.

A grammar is tried out in a separate process (`router/structured_output/grammar_trial.py`), one at a time, before it is
accepted, and the verdict is remembered for later requests with the same grammar. So a bad grammar is a 400 that names
its field, and never reaches a worker. A JSON schema reaches it in the form that the trial has given it.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import orjson

from slipstream.router.api.openai.body.sampling import invalid
from slipstream.router.api.openai.schema.generation_fields import GenerationFields
from slipstream.router.http.http_error import HttpError
from slipstream.router.protocol.grammar import DEFAULT_JSON, ENDLESS, JsonStyle, any_object
from slipstream.router.protocol.messages import GrammarKind, GrammarSpec
from slipstream.router.structured_output.bounded_cache import BoundedCache
from slipstream.router.structured_output.grammar_trial import GrammarTrials, GrammarVerdict

MAX_GRAMMAR_BYTES = 64 << 10
MAX_VERDICT_BYTES = 32 << 20  # some ten thousand schemas of tools
MAX_WAITING = 64  # grammars that wait for their trial, which takes a second at most
ANY_OBJECT = '{"type":"object"}'
FIELDS = frozenset(
    {"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)


class StructuredOutputField(NamedTuple):
    """A field of a request that can hold a grammar, and its value (None: not given)."""

    field: str
    kind: GrammarKind
    value: Any


class RequestGrammars:
    """The grammars of one API and their verdicts, which `trials` gives. Used on its event loop only."""

    def __init__(self, trials: GrammarTrials | None = None) -> None:
        self._verdicts: BoundedCache[tuple[GrammarSpec, JsonStyle], GrammarVerdict] = BoundedCache(MAX_VERDICT_BYTES)
        self._trials = GrammarTrials() if trials is None else trials
        self._turn = asyncio.Lock()
        self._waiting: set[asyncio.Task[GrammarVerdict]] = set()  # trials that wait for their turn or for a verdict

    async def of(self, body: GenerationFields) -> GrammarSpec | None:
        """The grammar of a request, None if it has none. Raises HttpError 400 for several at once and for one that no
        output can match, 503 if too many are waiting for their trial."""
        named = grammar_fields(body)
        if not named:
            if body.structured_outputs is not None:
                message = "'structured_outputs.json', or another grammar here or in the request, is required."
                raise invalid("structured_outputs.json", message)
            return None
        if len(named) > 1:
            names = " and ".join(f"'{one.field}'" for one in named)
            raise invalid(named[1].field, f"Only one of {names} can be followed at a time.")
        field, kind, value = named[0]
        outputs = body.structured_outputs
        style = DEFAULT_JSON if outputs is None else outputs.style
        if kind != "json" and style != DEFAULT_JSON:
            raise invalid("structured_outputs", f"'whitespace' and 'open_objects' are for JSON, not for '{field}'.")
        if value is ANY_OBJECT:
            return any_object(style)
        grammar, fault = await self.verdict(grammar_from(field, kind, value), style)
        if grammar is None:
            raise invalid(field, cannot_be_followed(field, fault))
        return grammar

    async def verdict(self, grammar: GrammarSpec, style: JsonStyle = DEFAULT_JSON) -> GrammarVerdict:
        """What the trial of a grammar has found. Raises HttpError 503 if too many are waiting for theirs."""
        key = grammar, style
        known = self._verdicts.get(key)
        if known is not None:
            return known
        if len(self._waiting) >= MAX_WAITING:
            raise HttpError(
                503,
                "Too many requests bring a schema or a grammar of their own.",
                kind="server_error",
                code="overloaded",
                headers=(("retry-after", "1"),),
            )
        trial = asyncio.create_task(self._try(grammar, style))
        self._waiting.add(trial)
        trial.add_done_callback(self._waiting.discard)
        return await asyncio.shield(trial)

    async def _try(self, grammar: GrammarSpec, style: JsonStyle) -> GrammarVerdict:
        """Tries a grammar and remembers the verdict. This runs as a separate task because the trial continues even if
        its client has left, and the next grammar has to wait for it, or it would get the wrong verdict."""
        async with self._turn:
            known = self._verdicts.get((grammar, style))
            if known is not None:
                return known
            found = await asyncio.to_thread(self._trials.verdict, grammar, style)
            final, fault = found
            num_bytes = len(grammar.spec) + len(final.spec if final is not None else fault or "")
            self._verdicts.put((grammar, style), found, num_bytes)
            return found


def grammar_fields(body: GenerationFields) -> list[StructuredOutputField]:
    """The fields of a request that hold a grammar."""
    if body.model_fields_set.isdisjoint(FIELDS):
        return []
    form, outputs = body.response_format, body.structured_outputs
    named: list[StructuredOutputField] = []
    if form is not None and form.type == "json_object":
        named.append(StructuredOutputField("response_format", "json", ANY_OBJECT))
    elif form is not None and form.json_schema is not None:
        named.append(StructuredOutputField("response_format.json_schema.schema", "json", form.json_schema.schema_))
    if outputs is not None:
        named += [
            StructuredOutputField("structured_outputs.json", "json", outputs.json_),
            StructuredOutputField(
                "structured_outputs.json_object", "json", ANY_OBJECT if outputs.json_object else None
            ),
            StructuredOutputField("structured_outputs.regex", "regex", outputs.regex),
            StructuredOutputField("structured_outputs.choice", "choice", outputs.choice),
            StructuredOutputField("structured_outputs.grammar", "grammar", outputs.grammar),
        ]
    named += [
        StructuredOutputField("guided_json", "json", body.guided_json),
        StructuredOutputField("guided_regex", "regex", body.guided_regex),
        StructuredOutputField("guided_choice", "choice", body.guided_choice),
        StructuredOutputField("guided_grammar", "grammar", body.guided_grammar),
    ]
    return [one for one in named if one.value is not None]


def grammar_from(field: str, kind: GrammarKind, value: Any) -> GrammarSpec:
    """The grammar in a field. Raises HttpError 400 if it is too large."""
    try:
        spec = value if isinstance(value, str) else orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:  # nested too deeply, or a number beyond 64 bits
        raise invalid(field, f"'{field}' cannot be followed: {error}.") from error
    num_bytes = len(spec.encode())
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise invalid(field, f"'{field}' has {num_bytes} bytes; there may be {MAX_GRAMMAR_BYTES}.")
    return GrammarSpec(kind, spec)


def cannot_be_followed(field: str, fault: str | None) -> str:
    """The message about a grammar in a field."""
    fault = fault or ""
    reason = "it refers to itself without end" if fault.startswith(ENDLESS) else " ".join(fault.split())[:500]
    return f"'{field}' cannot be followed: {reason}"
