"""The waiting requests of a model in the order in which they are to run: by priority level, and within a level in the
order of `LevelQueue`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from slipstream.router.batching.level_queue import LevelQueue
from slipstream.router.batching.scheduler import NEVER_S, QueuedRequest
from slipstream.router.tensors.model_spec import DynamicBatching, QueuePolicy


class RequestQueue:
    """`num_levels` 0: there are no priorities. Level 1 is the most urgent one; a request of level 0, or of one that
    does not exist, has the default level.

    Mostly a request is alone when it waits, for the next turn of the event loop. Where it has neither a level nor a
    time-out it is kept beside the levels until another one comes, and if none does, no tenant's share counts it."""

    def __init__(
        self,
        policy: QueuePolicy,
        num_levels: int = 0,
        default_level: int = 0,
        policies: Mapping[int, QueuePolicy] | None = None,
    ) -> None:
        self._num_levels = num_levels
        self._default_level = default_level
        self._default_policy = policy
        self._policies = policies or {}
        self._levels: dict[int, LevelQueue] = {}
        self._in_order: list[LevelQueue] = []
        self._only = LevelQueue(policy)
        if not num_levels:
            self._in_order = [self._only]
        self._keeps_alone = not num_levels and not policy.default_timeout_us
        self._alone: QueuedRequest | None = None  # the only one that waits; no level has it
        self.num_requests = 0
        self.num_rows = 0

    @classmethod
    def of(cls, batching: DynamicBatching) -> RequestQueue:
        return cls(
            batching.default_queue_policy,
            batching.priority_levels,
            batching.default_priority_level,
            batching.priority_queue_policies,
        )

    @property
    def is_in_order_of_arrival(self) -> bool:
        """Whether the last one that was pushed is the last one to be served."""
        return len(self._in_order) == 1 and self._in_order[0].is_in_order_of_arrival

    @property
    def next_timeout_s(self) -> float:
        if not self.num_requests:
            return NEVER_S
        if len(self._in_order) == 1:
            return self._in_order[0].next_timeout_s
        return min((level.next_timeout_s for level in self._in_order), default=NEVER_S)

    def __iter__(self) -> Iterator[QueuedRequest]:
        if self._alone is not None:
            return iter((self._alone,))
        if len(self._in_order) == 1:
            return iter(self._in_order[0])
        return chain.from_iterable(self._in_order)

    def push(self, request: QueuedRequest, now: float) -> QueuedRequest | None:
        """Returns the request of another tenant that is pushed out for it. Raises InferError if the queue of its level
        is full, and no request can be."""
        if self._keeps_alone and not self.num_requests:
            self._alone = request
            self.num_requests, self.num_rows = 1, request.batch_size
            return None
        self._join_level(now)
        pushed_out = self._level_of(request).push(request, now)
        self.num_requests += 1
        self.num_rows += request.batch_size
        if pushed_out is not None:
            self._count_out(pushed_out)
        return pushed_out

    def push_returned(self, request: QueuedRequest) -> None:
        """Puts back a request that was taken, before all others of its level."""
        self._join_level(request.queued_s)
        self._level_of(request).push_returned(request)
        self.num_requests += 1
        self.num_rows += request.batch_size

    def discard(self, request: QueuedRequest) -> bool:
        """Removes a request. Returns False if it is not here."""
        self._join_level(request.queued_s)
        is_here = self._level_of(request).discard(request)
        if is_here:
            self._count_out(request)
        return is_here

    def take(self, num_requests: int) -> list[QueuedRequest]:
        """Removes the first ones."""
        if self._alone is not None and num_requests:
            alone, self._alone = self._alone, None
            self.num_requests = self.num_rows = 0
            return [alone]
        taken: list[QueuedRequest] = []
        for level in self._in_order:
            taken += level.take(num_requests - len(taken))
            if len(taken) == num_requests:
                break
        for request in taken:
            self._count_out(request)
        return taken

    def expire(self, now: float) -> list[QueuedRequest]:
        """Applies the time-outs. Returns the requests that it removed."""
        rejected = [request for level in self._in_order for request in level.expire(now)]
        for request in rejected:
            self._count_out(request)
        return rejected

    def _join_level(self, now: float) -> None:
        """Another request than the one that is alone comes, or may leave."""
        alone, self._alone = self._alone, None
        if alone is not None:
            self._only.push(alone, now)

    def _count_out(self, request: QueuedRequest) -> None:
        self.num_requests -= 1
        self.num_rows -= request.batch_size

    def _level_of(self, request: QueuedRequest) -> LevelQueue:
        if not self._num_levels:
            return self._only
        number = request.request.priority
        if not 1 <= number <= self._num_levels:
            number = self._default_level
        level = self._levels.get(number)
        return level if level is not None else self._add_level(number)

    def _add_level(self, number: int) -> LevelQueue:
        level = self._levels[number] = LevelQueue(self._policies.get(number, self._default_policy))
        self._in_order = [self._levels[each] for each in sorted(self._levels)]
        return level
