"""One work queue per version of the model, so that a version without room delays no other version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from slipstream.router.dispatch.queue.work_queue import WorkQueue
from slipstream.router.requests.request_state import RequestState

MAX_EMPTY_QUEUES = 8


class QueuesByVersion:
    """One `WorkQueue` per version, and the queries about all of them together. Tenants share each queue separately:
    what a tenant was given of one version does not count against it on another."""

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._queues: dict[str, WorkQueue] = {}
        self.waiting: dict[str, str] = {}  # the version that each waiting request waits for, by request id

    def __len__(self) -> int:
        return len(self.waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.waiting

    def __iter__(self) -> Iterator[tuple[str, WorkQueue]]:
        """The versions that have requests waiting, with their queues; a copy, so queues may change meanwhile."""
        return iter([(version, queue) for version, queue in self._queues.items() if queue])

    @property
    def depth_by_priority(self) -> dict[int, int]:
        depth: Counter[int] = Counter()
        for queue in self._queues.values():
            depth.update(queue.depth_by_priority)
        return dict(sorted(depth.items()))

    def oldest_by_priority(self) -> dict[int, float]:
        oldest: dict[int, float] = {}
        for queue in self._queues.values():
            for priority, since_s in queue.oldest_by_priority().items():
                oldest[priority] = min(since_s, oldest.get(priority, since_s))
        return oldest

    def num_by_tenant(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for queue in self._queues.values():
            counts += queue.num_by_tenant()
        return counts

    @property
    def num_waiting(self) -> dict[str, int]:
        """How many requests wait for each version."""
        return {version: len(queue) for version, queue in self._queues.items() if queue}

    def num_waiting_of(self, tenant: str) -> int:
        return sum(queue.num_waiting_of(tenant) for queue in self._queues.values())

    def num_before(self, tenant: str, own_class: int) -> int:
        """See `WorkQueue.num_before`; summed over all versions, because the pace of placements is that of all."""
        return sum(queue.num_before(tenant, own_class) for queue in self._queues.values())

    def push(self, state: RequestState, delay_s: float = 0.0) -> None:
        self._queue_for(state).push(state, delay_s)

    def push_front(self, state: RequestState) -> None:
        self._queue_for(state).push_front(state)

    def take(self, request_id: str, now: float) -> None:
        version = self.waiting.pop(request_id)
        self._queues[version].take(request_id, now)

    def remove(self, request_id: str) -> None:
        version = self.waiting.pop(request_id)
        self._queues[version].remove(request_id)

    def settle(self, state: RequestState, num_tokens: int) -> None:
        queue = self._queues.get(state.version)
        if queue is not None:
            queue.settle(state, num_tokens)

    def change_version(self, state: RequestState, version: str) -> None:
        """Moves a waiting request to another version's queue. If it has been on a worker before, it goes ahead of all
        others of its class there."""
        self.remove(state.request_id)
        state.adopt(version)
        if state.attempt:
            self.push_front(state)
        else:
            self.push(state)

    def _queue_for(self, state: RequestState) -> WorkQueue:
        version = state.version
        queue = self._queues.get(version)
        if queue is None:
            if len(self._queues) >= MAX_EMPTY_QUEUES:
                self._queues = dict(self)
            queue = self._queues[version] = WorkQueue(self._ageing_s)
        self.waiting[state.request_id] = version
        return queue
