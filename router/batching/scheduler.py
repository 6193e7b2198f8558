"""What a scheduler of one version of a model does: it takes requests and gives batches to instances that have a free
slot. It has no clock and no I/O; every call gets the time, in seconds of one monotonic clock."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.tensor import Tensor

NEVER_S = float("inf")


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request that waits or runs. `batch_size` counts its rows (1 if the model does not batch). `attempts` are the
    executions that it was given to. The scheduler sets the rest: `queued_s` is when it was added, `ready_s` since when
    it may be part of a batch (later than that in a sequence), and only requests with equal `batch_key`s share one."""

    request: InferRequest
    batch_size: int = 1
    queued_s: float = 0.0
    attempts: int = 0
    ready_s: float = 0.0
    batch_key: Hashable = None


class BatchItem(NamedTuple):
    """`request` None: a place without a request in a batch of the direct sequence strategy. `extra_inputs` are control
    inputs and implicit state, beside the inputs of the request."""

    request: QueuedRequest | None
    extra_inputs: tuple[Tensor, ...] = ()


class RequestBatch(NamedTuple):
    """What one execution of an instance is given."""

    items: tuple[BatchItem, ...]

    @property
    def requests(self) -> list[QueuedRequest]:
        return [item.request for item in self.items if item.request is not None]


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that leaves the queue unserved, and why."""

    request: QueuedRequest
    error: InferError


class BatchScheduler(Protocol):
    """Of one version of a model. An instance has a name (`M_0_0`), and one execution at a time."""

    def add_instance(self, instance: str, now: float) -> None: ...

    def remove_instance(self, instance: str, now: float) -> Sequence[RefusedRequest]:
        """The instance is gone. Returns the waiting requests that cannot go on without it (of its sequences). What it
        was executing is the caller's to fail or to `retry`."""

    def retire_instance(self, instance: str) -> None:
        """It is to go: it gets no further sequence, but those that it has end there."""

    def has_sequences(self, instance: str) -> bool:
        """Whether an instance is still needed by sequences, although it is to go."""

    def add(self, request: QueuedRequest, now: float) -> None:
        """Queues a request. Raises InferError if it is refused: a full queue, a sequence without its start."""

    def retry(self, request: QueuedRequest, now: float) -> bool:
        """Puts back a request whose instance has died, before all others of its kind. Returns False if it must not be
        executed again: it belongs to a sequence."""

    def reschedule(self, request: QueuedRequest, now: float) -> None:
        """Queues a request again that its model has released with RESCHEDULE (iterative sequences). Called before
        `executed` of its batch."""

    def cancel(self, request: QueuedRequest, now: float) -> bool:
        """Takes a request out of the queue. Returns False if it does not wait there."""

    def take(self, instance: str, now: float) -> RequestBatch | None:
        """What this instance, which is free, is to execute now; None: nothing, yet."""

    def executed(self, batch: RequestBatch, instance: str, now: float) -> None:
        """The execution is over: the instance is free, and for a sequence the next request may run."""

    def due(self, now: float) -> Sequence[RefusedRequest]:
        """Ends what is too late: queue time-outs and idle sequences. Returns the requests that this rejects."""

    @property
    def next_time(self) -> float | None:
        """When `due`, and then `take` for each free instance, should be called although nothing happens; None: not
        before something does. A time in the past is possible: requests have been rejected, and `due` returns them."""

    @property
    def num_waiting(self) -> int: ...
