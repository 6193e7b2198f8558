"""When a mock worker has something to do again, because pages have arrived or a lease has ended."""

from __future__ import annotations

import heapq

from slipstream.workers.mock.mock_attempt import MockAttempt


class AttemptTimers:
    """The timers. An attempt has at most one, the last that was set: `attempt.due_s`. Timers without an attempt only
    wake the worker."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, MockAttempt | None]] = []
        self._num_set = 0
        self._wakes_s: float | None = None

    def set(self, due_s: float, attempt: MockAttempt) -> None:
        attempt.due_s = due_s
        self._push(due_s, attempt)

    def wake(self, due_s: float | None) -> None:
        """Something that is no attempt's timer is due then. May be called again with the same time."""
        if due_s is not None and due_s != self._wakes_s:
            self._push(due_s, None)
        self._wakes_s = due_s

    @property
    def next_s(self) -> float | None:
        """The time of the next timer, or an earlier time at which a replaced timer would have been due."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_s: float) -> MockAttempt | None:
        """The first attempt whose time has come, and whose timer is thereby removed."""
        while self._heap and self._heap[0][0] <= now_s:
            due_s, _, attempt = heapq.heappop(self._heap)
            if attempt is not None and due_s == attempt.due_s:
                attempt.due_s = None
                return attempt
        return None

    def _push(self, due_s: float, attempt: MockAttempt | None) -> None:
        self._num_set += 1
        heapq.heappush(self._heap, (due_s, self._num_set, attempt))
