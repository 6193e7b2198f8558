"""How many lines of a batch are served at a time. Sans-IO.

As in TCP: the window grows by one with each answer until one is refused for lack of room, then by one with each window
full of answers; a refusal halves it, once for all that were sent before it was halved.
"""

from __future__ import annotations

FIRST_WINDOW = 4.0


class Pacing:
    """`most` is the largest window. Times are those of a monotonic clock."""

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._window = min(FIRST_WINDOW, self._most)
        self._has_been_refused = False
        self._halved_s = float("-inf")
        self.not_before_s = float("-inf")  # no line is to be sent

    @property
    def window(self) -> int:
        return int(self._window)

    def answered(self) -> None:
        """A line got its result."""
        self._window = min(self._window + (1 / self._window if self._has_been_refused else 1), self._most)

    def refused(self, sent_s: float, retry_in_s: float, now: float) -> None:
        """There was no room for a line that was sent at `sent_s`; it may be tried again in `retry_in_s`."""
        self._has_been_refused = True
        self.not_before_s = max(self.not_before_s, now + retry_in_s)
        if sent_s >= self._halved_s:
            self._window = max(self._window / 2, 1.0)
            self._halved_s = now
