"""What the format of an API gets to write: choices, usage, and the head of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol

from slipstream.router.api.generation.answer.output import AnswerReason, Out, TokenEntry
from slipstream.router.api.generation.answer.token_report import RenderedPrompt
from slipstream.router.http.http_error import HttpError


class TokenUsage(NamedTuple):
    """The usage of an answer. Prompt tokens count once, however many choices there are. `num_reasoning_tokens` are
    among the output's, None: not known."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_reasoning_tokens: int | None = None

    def as_json(self) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }
        if self.num_reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.num_reasoning_tokens}
        return usage


@dataclass(frozen=True, slots=True)
class WholeChoice(Generic[Out]):
    """A complete choice. `logprobs` are entries made by `AnswerFormat.logprob`. `token_ids` and `prompt` are there if
    they were asked for."""

    index: int
    text: Out
    logprobs: list[Any]
    finish_reason: AnswerReason
    token_ids: list[int] | None = None
    prompt: RenderedPrompt | None = None


class AnswerHead(NamedTuple):
    """The fields that every part of an answer repeats. The model's `version`, if any, is sent as `system_fingerprint`,
    and the `service_tier` only if the request has one."""

    id: str
    created_s: int
    model: str
    version: str = ""
    service_tier: str = ""


class AnswerFormat(Protocol[Out]):
    """The format of one of the two endpoints, for outputs that are text or events. Chunks are complete SSE events.

    `logprob` renders the log-probabilities of one token. For whole answers, too, it is called as tokens arrive, because
    rendering all of a long answer at once would hold up the event loop. `served_by` sets the version of the model for
    everything that follows: it is chosen late, and may change. After `set_usage`, every chunk carries that usage.

    A `text_chunk` is empty where an event of the output does not show at once. `stopped_by` names the stop string that
    has ended a choice, before its last part is asked for. `stream_end` is all that follows the last choice; `explained`
    is JSON, empty if it was not asked for. `failure` is what a stream ends with instead, if the answer fails after a
    part of it has left. A `ping` may leave between any two chunks.

    All that a format writes is a function of what it was given: after the death of a router, another one is given the
    same tokens again, cut in other places, and what it writes for these is thrown away."""

    @property
    def ping(self) -> bytes: ...
    def served_by(self, version: str) -> None: ...
    def set_usage(self, usage: TokenUsage) -> None: ...
    def stopped_by(self, index: int, stop_string: str) -> None: ...
    def logprob(self, entry: TokenEntry) -> Any: ...
    def text_chunk(self, index: int, text: Out, logprobs: list[TokenEntry]) -> bytes: ...
    def final_chunk(self, index: int, text: Out, logprobs: list[TokenEntry], reason: AnswerReason) -> bytes: ...
    def stream_end(self, usage: TokenUsage, explained: bytes) -> bytes: ...
    def failure(self, error: HttpError) -> bytes: ...
    def whole(self, choices: Sequence[WholeChoice[Out]], usage: TokenUsage, explained: bytes = b"") -> bytes: ...
