"""What an output of a language model has grown by, or all of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.protocol.generation import Delta


@dataclass(slots=True)
class OutputPart:
    """`tokens` are all that were generated, the one that has ended the output included, which is not part of its text
    if the output `hides_end`. `reason` is set where the output ends. `total_logprob` is that of the output so far."""

    text: str = ""
    tokens: Delta = field(default_factory=list)
    hides_end: bool = False
    reason: str = ""
    total_logprob: float = 0.0

    @property
    def token_ids(self) -> list[int]:
        """Those that are part of the output."""
        token_ids = [token_id for token_id, _ in self.tokens]
        return token_ids[:-1] if self.hides_end else token_ids

    def extend(self, more: OutputPart) -> None:
        self.text += more.text
        self.tokens += more.tokens
        self.hides_end, self.reason, self.total_logprob = more.hides_end, more.reason, more.total_logprob


Grid = list[list[OutputPart]]  # the outputs of each row of a request
