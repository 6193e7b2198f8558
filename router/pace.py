"""How long a client that was turned away had better wait."""

from __future__ import annotations

from collections import deque


class PlacementPace:
    """How fast requests leave the queue, from the last placements; tells rejected clients when to come back."""

    MIN_RETRY_S = 1.0
    MAX_RETRY_S = 60.0
    UNKNOWN_RETRY_S = 5.0  # nothing was placed yet

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=64)

    def note(self, now: float) -> None:
        self._times.append(now)

    def retry_after_s(self, num_queued: int, now: float) -> float:
        """About the time in which the queue as it stands will have been worked off."""
        if not self._times:
            return self.UNKNOWN_RETRY_S
        elapsed = max(now - self._times[0], 1e-3)
        estimate = num_queued * elapsed / len(self._times)
        return min(max(estimate, self.MIN_RETRY_S), self.MAX_RETRY_S)
