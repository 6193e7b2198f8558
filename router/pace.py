"""How fast requests leave the queue: how long a new one will wait, and when one that was turned away may come back."""

from __future__ import annotations

from collections import deque

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
UNKNOWN_RETRY_S = 5.0  # nothing was placed yet
UNKNOWN_INTERVAL_S = 0.1
MIN_SAMPLES = 8  # a guess from fewer placements is none
LATEST_SAMPLES = 24


class PlacementPace:
    """From the last placements out of a queue that was not empty: how many a moment takes while nobody waits says
    nothing about how many it could take."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=64)
        self._latest_interval_s: float | None = None  # of earlier times with a queue

    def note(self, num_left: int, now: float) -> None:
        """A request was placed, and `num_left` wait on."""
        self._times.append(now)
        if not num_left:
            self._latest_interval_s = self.interval_s(now)
            self._times.clear()

    def interval_s(self, now: float) -> float | None:
        """Between placements while requests wait, now or when they did last; None: not known yet."""
        interval_s = self._interval_now_s(now)
        return self._latest_interval_s if interval_s is None else interval_s

    def wait_s(self, num_before: int, now: float) -> float | None:
        """How long a request with so many before it will wait; None while there is nothing to tell it from. What an
        earlier queue was like counts for nothing here: its requests may have been others."""
        interval_s = self._interval_now_s(now)
        return None if interval_s is None else num_before * interval_s

    def _interval_now_s(self, now: float) -> float | None:
        """Grows while nothing is placed. Of all that are remembered and the latest of them the better, so that a stall
        is soon forgotten."""
        times = self._times
        if len(times) < MIN_SAMPLES:
            return None
        num_latest = min(len(times), LATEST_SAMPLES)
        return max(min((now - times[0]) / (len(times) - 1), (now - times[-num_latest]) / (num_latest - 1)), 1e-6)

    def retry_after_s(self, num_before: int, now: float) -> float:
        """In about this time, so many requests will have left the queue."""
        interval_s = self.interval_s(now)
        if interval_s is None:
            return UNKNOWN_RETRY_S
        return min(max(num_before * interval_s, MIN_RETRY_S), MAX_RETRY_S)
