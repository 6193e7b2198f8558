"""What a worker has said about one attempt."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.protocol.messages import Failed, TokenChunk


class ConformanceError(Exception):
    """The worker does not keep the protocol, and in what."""


@dataclass(slots=True)
class AttemptAnswer:
    """`first_index` is that of the first token that is expected: tokens before it came with the request."""

    request_id: str
    attempt: int
    first_index: int
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    failure: Failed | None = None

    @property
    def has_ended(self) -> bool:
        return self.finish_reason is not None or self.failure is not None

    def add(self, chunk: TokenChunk) -> None:
        """Raises ConformanceError."""
        if self.has_ended:
            raise ConformanceError(f"{self.request_id}: tokens after its end ({self.finish_reason or 'Failed'})")
        expected = self.first_index + len(self.token_ids)
        if chunk.token_ids and chunk.index != expected:
            raise ConformanceError(f"{self.request_id}: a chunk has index {chunk.index}, expected is {expected}")
        self.token_ids += chunk.token_ids
        self.finish_reason = chunk.finish_reason

    def fail(self, failed: Failed) -> None:
        """Raises ConformanceError."""
        if self.has_ended:
            raise ConformanceError(f"{self.request_id}: Failed after its end ({self.finish_reason or 'Failed'})")
        self.failure = failed
