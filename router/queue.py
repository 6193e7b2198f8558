"""The work queue: who is next, with priorities that cannot starve anybody.

The order is by `submitted_s + priority * ageing_s`: waiting `ageing_s` lifts a request by one class, exactly, and the
order of two waiting requests never changes, so one sorted list is enough. Within a class the earliest goes first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter

from slipstream.router.request_state import RequestState

_Rank = tuple[float, int]  # (virtual time, tie breaker)


class WorkQueue:
    """Requests waiting for a place, in order. The bound on their number is the dispatcher's: retries always fit."""

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._order: list[tuple[_Rank, str]] = []
        self._waiting: dict[str, tuple[_Rank, RequestState]] = {}
        self._depth: Counter[int] = Counter()
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __getitem__(self, position: int) -> RequestState:
        return self._waiting[self._order[position][1]][1]

    @property
    def depth_by_priority(self) -> dict[int, int]:
        return dict(self._depth)

    def push(self, state: RequestState) -> None:
        """Adds a new request behind those of its class."""
        self._num_pushed += 1
        self._insert(state, (self._virtual_time(state), self._num_pushed))

    def push_front(self, state: RequestState) -> None:
        """Adds a request that comes back, before everybody of its class."""
        self._num_pushed += 1
        virtual_time = self._virtual_time(state)
        for (waiting_time, _), request_id in self._order:
            if waiting_time >= virtual_time:
                break
            if self._waiting[request_id][1].request.priority == state.request.priority:
                virtual_time = waiting_time
                break
        self._insert(state, (virtual_time, -self._num_pushed))

    def remove(self, request_id: str) -> None:
        rank, state = self._waiting.pop(request_id)
        del self._order[bisect_left(self._order, (rank, request_id))]
        priority = state.request.priority
        self._depth[priority] -= 1
        if not self._depth[priority]:
            del self._depth[priority]

    def _virtual_time(self, state: RequestState) -> float:
        return state.record.timeline.queued + state.request.priority * self._ageing_s

    def _insert(self, state: RequestState, rank: _Rank) -> None:
        request_id = state.request.request_id
        insort(self._order, (rank, request_id))
        self._waiting[request_id] = (rank, state)
        self._depth[state.request.priority] += 1
