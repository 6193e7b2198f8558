"""Virtual time: what is to happen, in the order of its time and, at one time, of its being planned."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class VirtualClock:
    """Plain tuples in a heap: a million requests make ten million events."""

    __slots__ = ("events", "now_s", "num_planned")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events: list[tuple[float, int, Callable[[Any], object], Any]] = []  # to be looked at: the first is next
        self.num_planned = 0  # so far

    def __len__(self) -> int:
        return len(self.events)

    @property
    def next_s(self) -> float | None:
        return self.events[0][0] if self.events else None

    def at(self, time_s: float, do: Callable[[Any], object], what: Any = None) -> None:
        """`do(what)` at `time_s`, or now if that is past."""
        self.num_planned = number = self.num_planned + 1
        heappush(self.events, (time_s if time_s > self.now_s else self.now_s, number, do, what))

    def step(self) -> None:
        """The next event happens. There must be one."""
        self.now_s, _, do, what = heappop(self.events)
        do(what)
