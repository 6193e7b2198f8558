"""When attempts on a mock worker have to be looked at again, because pages have arrived or a lease has ended."""

from __future__ import annotations

import heapq

from slipstream.workers.mock.mock_attempt import MockAttempt


class AttemptTimers:
    """The timers. An attempt has at most one, the last that was set: `attempt.due_s`."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, MockAttempt]] = []
        self._num_set = 0

    def set(self, due_s: float, attempt: MockAttempt) -> None:
        self._num_set += 1
        attempt.due_s = due_s
        heapq.heappush(self._heap, (due_s, self._num_set, attempt))

    @property
    def next_s(self) -> float | None:
        """The time of the next timer, or an earlier time at which a replaced timer would have been due."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_s: float) -> MockAttempt | None:
        """The first attempt whose time has come, and whose timer is thereby removed."""
        while self._heap and self._heap[0][0] <= now_s:
            due_s, _, attempt = heapq.heappop(self._heap)
            if due_s == attempt.due_s:
                attempt.due_s = None
                return attempt
        return None
