"""The fields of a body that this server does not know: which they are, and which of them must not be ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from slipstream.router.api.openai.schema.fields import is_one_of, refusal
from slipstream.router.http.http_error import HttpError

HEADER = "x-slipstream-ignored"
MAX_NAMES = 16
MAX_NAME_CHARS = 64
MORE = "..."  # stands for the names beyond MAX_NAMES
UNSAFE = re.compile(r"[^A-Za-z0-9_.$-]")

# Fields of other servers, or of the other endpoint, that would change the answer, by the object that they are in, and
# the values that change nothing.
KNOWN_ELSEWHERE: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "": {
        # the other endpoint
        **dict.fromkeys(("tools", "functions", "documents"), ([],)),
        **dict.fromkeys(("audio", "web_search_options", "chat_template", "max_completion_tokens"), ()),
        "modalities": (["text"],),
        "top_logprobs": (0,),
        "best_of": (1,),
        "suffix": ("",),
        # the form of the answer: SGLang, llama.cpp, vLLM
        **dict.fromkeys(("regex", "ebnf", "grammar", "json_schema", "structural_tag", "stop_regex"), ("",)),
        "guided_whitespace_pattern": (),
        # the prompt and the model: vLLM, SGLang, TGI
        **dict.fromkeys(("prompt_embeds", "input_embeds", "lora_path", "adapter_id"), ()),
        # the length of the answer: llama.cpp, Ollama, TGI, vLLM
        **dict.fromkeys(("n_predict", "num_predict"), (-1,)),
        **dict.fromkeys(("max_new_tokens", "thinking_token_budget"), ()),
        # sampling: TGI, llama.cpp, Ollama, OpenRouter, SGLang
        **dict.fromkeys(("typical_p", "tfs_z", "repeat_penalty"), (1, 1.0)),
        **dict.fromkeys(("top_a", "mirostat", "mirostat_mode", "xtc_probability", "dry_multiplier"), (0, 0.0)),
        **dict.fromkeys(("dynatemp_range", "smoothing_factor"), (0, 0.0)),
        "custom_logit_processor": (),
    },
    # a beginning that the model is to continue: Mistral, DeepSeek, Qwen
    "messages.*.": dict.fromkeys(("prefix", "partial"), (False,)),
}
NOTHING: Mapping[str, Sequence[Any]] = {}


class UnknownFields:
    """The unknown fields of a body that was parsed with `extra="allow"`. `names` are up to MAX_NAMES paths, in which
    `*` stands for any item of a list, and `?` for each character that is not safe in a header.

    Raises HttpError 400 for a field that is not known to this API, but known to change the answer.
    """

    def __init__(self, body: BaseModel) -> None:
        self.names: list[str] = []
        self._has_more = False
        self._seen: dict[str, set[str]] = {}  # names by path
        self._visit(body, "", ())

    @property
    def header(self) -> str:
        return ", ".join([*self.names, MORE] if self._has_more else self.names)

    def _visit(self, body: BaseModel, path: str, indices: tuple[int, ...]) -> None:
        """Of the object at `path`, in which the `indices` stand for the asterisks."""
        if extra := body.model_extra:
            refuse_known_elsewhere(extra, path, indices)
            self._add(extra, path)
        for name, value in body.__dict__.items():
            if value is None or type(value) is str:  # most are
                continue
            if isinstance(value, BaseModel):
                self._visit(value, f"{path}{name}.", indices)
            elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
                below = f"{path}{name}.*."
                for index, item in enumerate(value):
                    self._visit(item, below, (*indices, index))

    def _add(self, extra: Mapping[str, Any], path: str) -> None:
        seen = self._seen.setdefault(path, set())
        for name in [name for name in extra if name not in seen]:  # as a rule, all messages have the same
            if self._has_more:
                return
            seen.add(name)
            place = path + safe(name)
            if place not in self.names:
                self._has_more = len(self.names) == MAX_NAMES
                self.names += [] if self._has_more else [place]


def safe(name: str) -> str:
    """A name that a client made up, with "?" for each character that is not safe in a header or a label."""
    return UNSAFE.sub("?", name[:MAX_NAME_CHARS]) or "?"


def refuse_known_elsewhere(extra: Mapping[str, Any], path: str, indices: Sequence[int]) -> None:
    """Raises HttpError 400 if one of the unknown fields of the object at `path` would change the answer."""
    for name, neutral in KNOWN_ELSEWHERE.get(path, NOTHING).items():
        accepted = (*neutral, None)
        if name in extra and not is_one_of(extra[name], accepted):
            param = path.replace("*", "%d") % tuple(indices) + name
            message = f"'{param}': {refusal(extra[name], accepted)}."
            raise HttpError(400, message, param=param, code="unsupported_parameter")
