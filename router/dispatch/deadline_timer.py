"""The timer of a dispatcher's next deadline, on an asyncio loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class DeadlineTimer:
    """Calls `on_due` when the time of `next_deadline` has come (None: there is none), in seconds of `time.monotonic()`.

    A dispatcher without requests has no deadline, so it costs nothing; the loop's own heap puts the timers in order.
    """

    __slots__ = ("_due_s", "_handle", "_is_closed", "_is_look_due", "_next_deadline", "_on_due")

    def __init__(self, next_deadline: Callable[[], float | None], on_due: Callable[[], None]) -> None:
        self._next_deadline = next_deadline
        self._on_due = on_due
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._is_look_due = False
        self._is_closed = False

    def look_soon(self) -> None:
        """The deadline may have changed. It is looked at once per turn of the loop, after all events of the turn."""
        if not self._is_look_due:
            self._is_look_due = True
            asyncio.get_running_loop().call_soon(self._look)

    def close(self) -> None:
        self._is_closed = True
        if self._handle is not None:
            self._handle.cancel()

    def _look(self) -> None:
        """Sets the timer. Most deadlines are dropped before they come, so a timer that is early enough is left alone,
        even if it will find nothing to do."""
        self._is_look_due = False
        due_s = self._next_deadline()
        if due_s is None or self._is_closed:
            return
        if self._handle is not None:
            if self._due_s <= due_s:
                return
            self._handle.cancel()
        self._due_s = due_s
        delay_s = max(due_s - time.monotonic(), 0.0)
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._handle = None
        self._on_due()
