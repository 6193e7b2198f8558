"""Virtual time: what is to happen, in the order of its time and, at one time, of its being planned."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Plain tuples in a heap: a million requests make ten million events."""

    __slots__ = ("_events", "_num_planned", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self._num_planned = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def num_planned(self) -> int:
        """Events so far."""
        return self._num_planned

    @property
    def next_s(self) -> float | None:
        return self._events[0][0] if self._events else None

    def at(self, time_s: float, do: Callable[[Any], object], what: Any = None) -> None:
        """`do(what)` at `time_s`, or now if that is past."""
        self._num_planned += 1
        heapq.heappush(self._events, (time_s if time_s > self.now_s else self.now_s, self._num_planned, do, what))

    def step(self) -> None:
        """The next event happens. There must be one."""
        self.now_s, _, do, what = heapq.heappop(self._events)
        do(what)
