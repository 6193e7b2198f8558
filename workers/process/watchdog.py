"""Notices an engine thread that is stuck: in a collective whose other end hangs, in a driver, in a lock.

Nothing else would notice, because the connection to the router, and so its pings, are served by another thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

NUM_LOOKS = 4


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of an asyncio loop that is needed here."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer: ...


class Watchdog:
    """Calls `on_stuck` once, on the loop, when `turn()` has returned the same number for `bound_s` (None means idle).

    It looks `NUM_LOOKS` times in that span and counts the looks rather than the time, so a process that was stopped as
    a whole and continues does not count as stuck. It notices after a further quarter of `bound_s` at the latest.
    """

    def __init__(
        self, timers: Timers, turn: Callable[[], int | None], bound_s: float, on_stuck: Callable[[], None]
    ) -> None:
        self._timers = timers
        self._turn = turn
        self._interval_s = bound_s / NUM_LOOKS
        self._on_stuck = on_stuck
        self._seen: int | None = None
        self._num_unchanged = 0
        self._timer = timers.call_later(self._interval_s, self._look)

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        turn = self._turn()
        self._num_unchanged = self._num_unchanged + 1 if turn is not None and turn == self._seen else 0
        self._seen = turn
        if self._num_unchanged == NUM_LOOKS:
            self._on_stuck()
        else:
            self._timer = self._timers.call_later(self._interval_s, self._look)
