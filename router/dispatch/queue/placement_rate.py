"""How fast requests leave the queue; from that, how long a new one will wait and when a refused one may come back."""

from __future__ import annotations

from collections import deque

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
UNKNOWN_RETRY_S = 5.0  # while nothing has been placed yet
UNKNOWN_INTERVAL_S = 0.1
MIN_SAMPLES = 8  # fewer placements are no estimate
LATEST_SAMPLES = 24


class PlacementRate:
    """Measures the interval between placements, but only while requests wait: without a queue, the rate of placements
    is the rate of arrivals and says nothing about what the cluster could do."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=64)
        self._latest_interval_s: float | None = None  # from the last time there was a queue
        self._still_since = 0.0  # when a request was placed last, or the first one began to wait

    def begin(self, now: float) -> None:
        """A request begins to wait, as the only one."""
        self._still_since = now

    def note(self, num_left: int, now: float) -> None:
        """A request was placed, and `num_left` are still waiting."""
        times = self._times
        times.append(now)
        self._still_since = now
        if not num_left:
            if len(times) >= MIN_SAMPLES:
                self._latest_interval_s = self._interval_now_s(now)
            times.clear()

    def interval_s(self, now: float) -> float | None:
        """Seconds between placements while requests wait, now or the last time they did; None: not known yet."""
        interval_s = self._interval_now_s(now)
        return self._latest_interval_s if interval_s is None else interval_s

    @property
    def is_known(self) -> bool:
        """Whether enough requests of this queue have been placed for an estimate."""
        return len(self._times) >= MIN_SAMPLES

    def wait_s(self, num_before: int, now: float) -> float:
        """How long a request with `num_before` others ahead of it will wait. The pace of an earlier queue is not used
        here, because its requests may have been of another kind. While there have been too few placements, a queue that
        has stood still for a time is taken to do so for as long again."""
        interval_s = self._interval_now_s(now)
        if interval_s is None:
            return now - self._still_since if num_before else 0.0
        return num_before * interval_s

    def _interval_now_s(self, now: float) -> float | None:
        """The interval by all remembered placements or by the latest few, whichever is shorter, so that a stall is soon
        forgotten. It grows while nothing is placed."""
        if not self.is_known:
            return None
        times = self._times
        num_latest = min(len(times), LATEST_SAMPLES)
        return max(min((now - times[0]) / (len(times) - 1), (now - times[-num_latest]) / (num_latest - 1)), 1e-6)

    def retry_after_s(self, num_before: int, now: float) -> float:
        """In about how many seconds `num_before` requests will have left the queue."""
        interval_s = self.interval_s(now)
        if interval_s is None:
            return UNKNOWN_RETRY_S
        return min(max(num_before * interval_s, MIN_RETRY_S), MAX_RETRY_S)
