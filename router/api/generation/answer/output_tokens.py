"""An output whose tokens are sent as they are: they are made no text."""

from __future__ import annotations

from slipstream.router.api.generation.answer.output import TokenEntry
from slipstream.router.protocol.generation import Delta


class OutputTokens:
    """Like OutputText, with an empty text."""

    __slots__ = ("held", "num_tokens", "stopped")

    has_calls = False
    call_names: tuple[str, ...] = ()
    stop_string: str | None = None
    num_reasoning_tokens: int | None = None

    def __init__(self) -> None:
        self.held: list[TokenEntry] = []
        self.num_tokens = 0
        self.stopped = False

    def add(self, delta: Delta, hides_last: bool = False) -> str:
        visible = delta[:-1] if hides_last else delta
        self.held += [TokenEntry(token_id, logprob, 0) for token_id, logprob in visible if logprob is not None]
        self.num_tokens += len(delta)
        return ""

    def finish(self) -> str:
        return ""

    def take_logprobs(self) -> list[TokenEntry]:
        entries, self.held = self.held, []
        return entries

    def joined(self, parts: list[str]) -> str:
        return ""
