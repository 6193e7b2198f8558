"""What an answer is made of: text, or what a parser has read in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from slipstream.router.parsers.events import OutputEvent
from slipstream.router.protocol.generation import Delta
from slipstream.router.protocol.messages import FinishReason, TokenLogprob

AnswerReason: TypeAlias = FinishReason | Literal["tool_calls"]
Events: TypeAlias = list[OutputEvent]
Out = TypeVar("Out", str, Events)


class TokenEntry(NamedTuple):
    """A visible token; its text begins `offset` characters into the output."""

    token_id: int
    logprob: TokenLogprob
    offset: int


class ChoiceOutput(Protocol[Out]):
    """The output of one choice as it grows. `held` are the entries of tokens that wait for their text. `stopped` is set
    where the output ended before the model ended it. `has_calls`: it has calls, none of which is cut off; `call_names`
    are the tools that they call. `stop_string` is the one that ended it, if any did. `num_reasoning_tokens` is None
    where reasoning is not read."""

    num_tokens: int
    stopped: bool

    @property
    def held(self) -> Sequence[TokenEntry]: ...
    @property
    def has_calls(self) -> bool: ...
    @property
    def call_names(self) -> Sequence[str]: ...
    @property
    def stop_string(self) -> str | None: ...
    @property
    def num_reasoning_tokens(self) -> int | None: ...

    def add(self, delta: Delta, hides_last: bool = False) -> Out:
        """What became certain with `delta`. With `hides_last`, its last token ended the output: it counts but is not
        visible."""

    def finish(self) -> Out:
        """End the output. Returns what was still held back."""

    def take_logprobs(self) -> list[TokenEntry]:
        """The entries of the tokens whose text has been released since the last call."""

    def joined(self, parts: list[Out]) -> Out:
        """All parts of an output as one."""
