"""How many requests of an ensemble may be in the same step at a time (`max_inflight_requests`)."""

from __future__ import annotations

from collections import Counter, deque
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter")


class EnsembleStepLimits(Generic[Waiter]):
    """Of one version. What waits for a step enters it in the order in which it came. `max_running` 0: no bound."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._num_running: Counter[int] = Counter()
        self._waiting: dict[int, deque[Waiter]] = {}

    def enters(self, step: int, waiter: Waiter) -> bool:
        """Whether it may run now. If not, `leave` will return it, unless it is withdrawn."""
        if not self._max_running:
            return True
        if self._num_running[step] < self._max_running:
            self._num_running[step] += 1
            return True
        self._waiting.setdefault(step, deque()).append(waiter)
        return False

    def leave(self, step: int) -> Waiter | None:
        """One that ran has ended. Returns what runs now in its place."""
        waiting = self._waiting.get(step)
        if waiting:
            return waiting.popleft()
        if self._max_running:
            self._num_running[step] -= 1
        return None

    def withdraw(self, step: int, waiter: Waiter) -> bool:
        """Returns whether it was waiting."""
        waiting = self._waiting.get(step)
        if waiting is None or waiter not in waiting:
            return False
        waiting.remove(waiter)
        return True
