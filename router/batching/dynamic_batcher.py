"""The scheduler of models without sequences: any free instance takes the next batch of one queue."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from slipstream.router.batching.batch_keys import BatchKeys, batch_keys_of
from slipstream.router.batching.batch_rule import BatchChoice, BatchRule
from slipstream.router.batching.level_queue import queue_full
from slipstream.router.batching.request_queue import RequestQueue
from slipstream.router.batching.scheduler import NEVER_S, BatchItem, QueuedRequest, RefusedRequest, RequestBatch
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode
from slipstream.router.tensors.model_spec import ModelSpec, QueuePolicy

ONE_AT_A_TIME = BatchRule(max_rows=1, preferred_rows=())
ONLY_ONE = BatchChoice(1)  # of a queue with one request that need not wait for others


def timed_out() -> InferError:
    return InferError("Request timeout expired", InferErrorCode.UNAVAILABLE, FailureReason.REJECTED)


class DynamicBatcher:
    """A batch forms when an instance takes it, so it grows for as long as all are busy. While an idle instance waits
    for a larger batch, `_wait_until_s` says how long; no batch is looked for before `_needed_rows` rows wait, or one
    whose key is not `_waiting_key`."""

    def __init__(self, queue: RequestQueue, rule: BatchRule, keys: BatchKeys | None) -> None:
        self._queue = queue
        self._rule = rule
        self._keys = keys
        self._rejected: list[RefusedRequest] = []
        self._wait_until_s = NEVER_S
        self._needed_rows = 0
        self._waiting_key: Hashable = None

    @classmethod
    def of(cls, spec: ModelSpec) -> DynamicBatcher:
        """Without `dynamic_batching` an execution is one request, and no queue policy applies."""
        batching = spec.dynamic_batching
        if batching is None:
            return cls(RequestQueue(QueuePolicy()), ONE_AT_A_TIME, None)
        rule = BatchRule.of(spec.max_batch_size, batching.preferred_batch_sizes, batching.max_queue_delay_us)
        return cls(RequestQueue.of(batching), rule, batch_keys_of(spec))

    @property
    def num_waiting(self) -> int:
        return self._queue.num_requests

    @property
    def next_time(self) -> float | None:
        if self._rejected:
            return 0.0
        next_s = min(self._wait_until_s, self._queue.next_timeout_s)
        return next_s if next_s < NEVER_S else None

    def add_instance(self, instance: str, now: float) -> None:
        """Any instance takes from the one queue."""

    def remove_instance(self, instance: str, now: float) -> Sequence[RefusedRequest]:
        return ()

    def retire_instance(self, instance: str) -> None:
        """No request depends on it."""

    def has_sequences(self, instance: str) -> bool:
        return False

    def add(self, request: QueuedRequest, now: float) -> None:
        request.queued_s = request.ready_s = now
        if self._keys is not None:
            request.batch_key = self._keys.of(request.request)
        pushed_out = self._queue.push(request, now)
        if pushed_out is not None:
            self._rejected.append(RefusedRequest(pushed_out, queue_full()))
            self._needed_rows = 0
        if self._needed_rows and (request.batch_key != self._waiting_key or not self._queue.is_in_order_of_arrival):
            self._needed_rows = 0

    def retry(self, request: QueuedRequest, now: float) -> bool:
        self._queue.push_returned(request)
        self._needed_rows = 0
        return True

    def reschedule(self, request: QueuedRequest, now: float) -> None:
        """Only iterative sequences are rescheduled; here the request begins anew."""
        self.add(request, now)

    def cancel(self, request: QueuedRequest, now: float) -> bool:
        self._needed_rows = 0
        return self._queue.discard(request)

    def take(self, instance: str, now: float) -> RequestBatch | None:
        queue = self._queue
        if not queue.num_requests or (queue.num_rows < self._needed_rows and now < self._wait_until_s):
            return None
        self._expire(now)
        if not queue.num_requests:
            return None
        choice = ONLY_ONE if queue.num_requests == 1 and not self._rule.delay_s else self._rule.choose(queue, now)
        self._wait_until_s = choice.wait_until_s
        self._needed_rows, self._waiting_key = choice.needed_rows, choice.key
        if not choice.num_requests:
            return None
        return RequestBatch(tuple([BatchItem(request) for request in queue.take(choice.num_requests)]))

    def executed(self, batch: RequestBatch, instance: str, now: float) -> None:
        """Nothing depends on it."""

    def due(self, now: float) -> Sequence[RefusedRequest]:
        if self._wait_until_s <= now:
            self._wait_until_s = NEVER_S
            self._needed_rows = 0
        self._expire(now)
        rejected, self._rejected = self._rejected, []
        return rejected

    def _expire(self, now: float) -> None:
        if self._queue.next_timeout_s <= now:
            self._needed_rows = 0
            self._rejected += [RefusedRequest(request, timed_out()) for request in self._queue.expire(now)]
