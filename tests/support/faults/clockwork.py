"""Virtual time, and TCP connections in it: in order within one, in no order between two, and cut at any byte."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

FOREVER = float("inf")


class Clockwork:
    """Events in the order of their times; those of one moment in the order in which they were set."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._num_set = 0

    def time(self) -> float:
        return self.now

    def at(self, time_s: float, do: Callable[[], None]) -> None:
        self._num_set += 1
        heapq.heappush(self._heap, (max(time_s, self.now), self._num_set, do))

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        self.at(self.now + delay_s, do)

    def step(self) -> bool:
        """Does the next event; False if there is none."""
        if not self._heap:
            return False
        self.now, _, do = heapq.heappop(self._heap)
        self.num_events += 1
        do()
        return True


class End(Protocol):
    """Who sits at one end of a connection."""

    def on_frame(self, connection: Connection, frame: Any) -> None: ...

    def on_lost(self, connection: Connection) -> None:
        """The connection is over for this end. Not called after its own `leave`."""


class _Way:
    """One direction. `end_s`: what would arrive later never does."""

    def __init__(self, to: End) -> None:
        self.to = to
        self.free_s = 0.0
        self.end_s = FOREVER
        self.is_over = False
        self.frames: deque[tuple[float, Any]] = deque()  # on their way, and when they would arrive


class Connection:
    """Between a worker (end 0) and the router (end 1)."""

    def __init__(self, clock: Clockwork, worker: End, router: End) -> None:
        self._clock = clock
        self._ways = (_Way(worker), _Way(router))  # by the end that they lead to
        self._stalled_until_s = 0.0

    @property
    def is_open(self) -> bool:
        return not any(way.is_over for way in self._ways)

    def is_between(self, end: End) -> bool:
        return any(way.to is end for way in self._ways)

    def send(self, to: int, frame: Any, written_s: float = 0.0) -> None:
        """Written at `written_s` or now; arrives behind all that was written before."""
        way, clock = self._ways[to], self._clock
        delay_s = clock.rng.choice((0.0002, 0.001, 0.004, 0.02)) * clock.rng.random()
        arrives_s = max(way.free_s, written_s, clock.now, self._stalled_until_s) + delay_s
        way.free_s = arrives_s

        way.frames.append((arrives_s, frame))

        def arrive() -> None:
            if self._stalled_until_s > clock.now:
                clock.at(self._stalled_until_s, arrive)
                return
            due_s, first = way.frames.popleft()  # whichever frame this was set for: they arrive in order
            if not way.is_over and due_s <= way.end_s:
                way.to.on_frame(self, first)

        clock.at(arrives_s, arrive)

    def leave(self, end: int) -> None:
        """This end closes, or its process dies: it hears no more, and the other end does, now or a little later,
        perhaps after some of what is still on its way."""
        self._ways[end].is_over = True
        self._end(1 - end, self._clock.rng.choice((0.0, 0.0005, 0.005, 0.05)))

    def cut(self) -> None:
        """In the middle: each end hears of it when it does, and of what was on its way only a part arrives."""
        for to in (0, 1):
            self._end(to, self._clock.rng.choice((0.0, 0.001, 0.02, 0.2)))

    def stall(self, seconds: float) -> None:
        """Nothing arrives for so long; nothing is lost."""
        self._stalled_until_s = max(self._stalled_until_s, self._clock.now + seconds)
        for way in self._ways:
            way.free_s = max(way.free_s, self._stalled_until_s)

    def _end(self, to: int, delay_s: float) -> None:
        way, clock = self._ways[to], self._clock
        way.end_s = min(way.end_s, clock.now + delay_s)

        def end() -> None:
            if not way.is_over:
                way.is_over = True
                way.to.on_lost(self)

        clock.at(way.end_s, end)
