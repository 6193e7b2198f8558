"""A sequence of requests, and the slot of an instance that it holds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from slipstream.router.batching.scheduler import NEVER_S, QueuedRequest
from slipstream.router.tensors.tensor import Tensor


@dataclass(slots=True, eq=False)
class SequenceSlot:
    """`index` is the place in the batch (direct strategy)."""

    instance: str
    index: int
    sequence: RequestSequence | None = None


@dataclass(slots=True, eq=False)
class RequestSequence:
    """`is_open`: requests with its id still belong to it. `slot` None: it is in the backlog, where it may stay until
    `expires_s`. `number` counts sequences in their order of arrival. `has_begun`: one of its requests was
    given to an instance. `states` are its implicit state, by input."""

    correlation_id: int | str
    tenant: str
    number: int
    waiting: deque[QueuedRequest] = field(default_factory=deque)
    num_running: int = 0
    has_begun: bool = False
    is_open: bool = True
    slot: SequenceSlot | None = None
    expires_s: float = NEVER_S
    idle_since_s: float = 0.0
    states: dict[str, Tensor] = field(default_factory=dict)

    @property
    def has_requests(self) -> bool:
        return bool(self.waiting) or self.num_running > 0
