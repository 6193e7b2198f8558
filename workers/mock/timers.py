"""When an attempt on a mock worker is to be looked at again: pages have arrived, or a lease is over."""

from __future__ import annotations

import heapq

from slipstream.workers.mock.attempt import Attempt


class Timers:
    """An attempt has one at most: the last one that was set, `attempt.due_s`."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Attempt]] = []
        self._num_set = 0

    def set(self, due_s: float, attempt: Attempt) -> None:
        self._num_set += 1
        attempt.due_s = due_s
        heapq.heappush(self._heap, (due_s, self._num_set, attempt))

    @property
    def next_s(self) -> float | None:
        """Not later than the next one; what has been replaced by a later one may be named as well."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_s: float) -> Attempt | None:
        """The first whose time has come. It has no timer any more."""
        while self._heap and self._heap[0][0] <= now_s:
            due_s, _, attempt = heapq.heappop(self._heap)
            if due_s == attempt.due_s:
                attempt.due_s = None
                return attempt
        return None
