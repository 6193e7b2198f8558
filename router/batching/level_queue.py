"""The waiting requests of one priority level, under its queue policy."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, count, islice

from slipstream.router.batching.scheduler import NEVER_S, QueuedRequest
from slipstream.router.batching.tenant_queue import TenantQueue
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode
from slipstream.router.tensors.model_spec import QueuePolicy

MIN_OBSOLETE_DEADLINES = 64


def queue_full() -> InferError:
    return InferError("Exceeds maximum queue size", InferErrorCode.UNAVAILABLE, FailureReason.REJECTED)


class LevelQueue:
    """In this order: requests that come back after a lost execution, those that wait in time, and those that are too
    late but are kept (DELAY)."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._has_timeouts = policy.default_timeout_us > 0
        self._returned: OrderedDict[QueuedRequest, None] = OrderedDict()
        self._in_time = TenantQueue()
        self._delayed: OrderedDict[QueuedRequest, None] = OrderedDict()
        self._deadlines: list[tuple[float, int, QueuedRequest]] = []  # a heap; some are obsolete
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._returned) + len(self._in_time) + len(self._delayed)

    def __iter__(self) -> Iterator[QueuedRequest]:
        if not self._returned and not self._delayed:
            return iter(self._in_time)
        return chain(self._returned, self._in_time, self._delayed)

    @property
    def is_in_order_of_arrival(self) -> bool:
        """Whether the last one that was pushed is the last one to be served."""
        return self._in_time.num_tenants <= 1 and not self._delayed

    @property
    def next_timeout_s(self) -> float:
        deadlines = self._deadlines
        while deadlines and deadlines[0][2] not in self._in_time:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else NEVER_S

    def push(self, request: QueuedRequest, now: float) -> QueuedRequest | None:
        """Returns the request that is pushed out for it, if the queue is full. Raises InferError if there is none."""
        max_size = self._policy.max_queue_size
        pushed_out = None
        if max_size and len(self._in_time) + len(self._delayed) >= max_size:
            pushed_out = self._push_out_for(request.request.tenant)
        self._in_time.push(request)
        if self._has_timeouts:
            self._set_deadline(request, now)
        return pushed_out

    def push_returned(self, request: QueuedRequest) -> None:
        """Puts back a request that was taken. It has no time-out any more."""
        self._returned[request] = None

    def discard(self, request: QueuedRequest) -> bool:
        if self._in_time.discard(request):
            return True
        for queue in (self._returned, self._delayed):
            if request in queue:
                del queue[request]
                return True
        return False

    def take(self, num_requests: int) -> list[QueuedRequest]:
        """Removes the first ones."""
        if not self._returned and not self._delayed:
            return self._in_time.take(num_requests)
        taken = _pop_first(self._returned, num_requests)
        taken += self._in_time.take(num_requests - len(taken))
        return taken + _pop_first(self._delayed, num_requests - len(taken))

    def expire(self, now: float) -> list[QueuedRequest]:
        """Removes the requests that are too late, or delays them. Returns those that it removed."""
        rejected = []
        while self.next_timeout_s <= now:
            request = heapq.heappop(self._deadlines)[2]
            self._in_time.discard(request)
            if self._policy.timeout_action == "DELAY":
                self._delayed[request] = None
            else:
                rejected.append(request)
        return rejected

    def _push_out_for(self, tenant: str) -> QueuedRequest:
        """A tenant does not fill the queue against others: its newest request makes room for one of a tenant that has
        fewer."""
        newest = self._in_time.last_of_longest()
        if newest is None:
            raise queue_full()
        num_most = self._in_time.num_waiting_of(newest.request.tenant)
        if num_most <= self._in_time.num_waiting_of(tenant) + 1:
            raise queue_full()
        self._in_time.discard(newest)
        return newest

    def _set_deadline(self, request: QueuedRequest, now: float) -> None:
        """The time-out of a request counts if it is shorter than that of the policy."""
        timeout_us = self._policy.default_timeout_us
        if self._policy.allow_timeout_override and request.request.timeout_us:
            timeout_us = min(timeout_us, request.request.timeout_us)
        heapq.heappush(self._deadlines, (now + timeout_us / 1e6, next(self._numbers), request))
        if len(self._deadlines) > 2 * len(self._in_time) + MIN_OBSOLETE_DEADLINES:
            self._deadlines = [each for each in self._deadlines if each[2] in self._in_time]
            heapq.heapify(self._deadlines)


def _pop_first(queue: OrderedDict[QueuedRequest, None], num_requests: int) -> list[QueuedRequest]:
    taken = list(islice(queue, num_requests))
    for request in taken:
        del queue[request]
    return taken
