"""What the instances of a version have to do at the moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.batching.scheduler import RequestBatch
from slipstream.router.infer.requests.active_request import ActiveRequest


@dataclass(slots=True)
class RunningBatch:
    """`numbers` are those of its places, with or without a request."""

    number: int
    batch: RequestBatch
    numbers: list[int]
    started_s: float


@dataclass(slots=True)
class InstanceWork:
    """What an instance has: at most one execution, and requests that await further responses. One that `is_leaving`
    gets no requests but those of the sequences that it has."""

    name: str
    key: str = ""
    running: RunningBatch | None = None
    open: dict[int, ActiveRequest] = field(default_factory=dict)
    is_leaving: bool = False

    def running_s(self, now: float) -> float:
        """How long it has been executing."""
        return now - self.running.started_s if self.running is not None else 0.0
