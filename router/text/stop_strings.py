"""Finds stop strings in text that arrives in pieces of any size, and holds back what could still become one."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Of several matches the one that ends first wins, and the longest of those that end together, so the result does
    not depend on how the text was cut into pieces.

    `matched` is the stop string that was found, if any; nothing is released after it. The text before it is released,
    and the stop string itself only with `include`. A stop string that is complete within text added as `protected` is
    text like any other; one that only begins there counts.
    """

    __slots__ = ("_held", "_include", "_num_protected", "_stops", "matched")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        assert all(stops), "a stop string is empty"
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self._num_protected = 0  # characters at the beginning of what is held back in which no stop string may end
        self.matched: str | None = None

    @property
    def num_held(self) -> int:
        """How many characters are held back."""
        return len(self._held)

    def add(self, text: str, protected: bool = False) -> str:
        """Add text. Returns the text that is now certain to come before any stop string."""
        if self.matched is not None:
            return ""
        text = self._held + text
        if protected:
            self._num_protected = len(text)
        first: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, self._num_protected - len(stop) + 1) if self._num_protected else 0)
            if start >= 0 and (first is None or (start + len(stop), start) < first):
                first = (start + len(stop), start)
        if first is not None:
            end, start = first
            self.matched = text[start:end]
            self._held = ""
            return text[: end if self._include else start]
        keep_from = self._possible_start(text)
        self._held = text[keep_from:]
        if self._num_protected:
            self._num_protected = max(0, self._num_protected - keep_from)
        return text[:keep_from]

    def finish(self) -> str:
        """End the text. Returns what was held back, as it did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """The position of the longest suffix of `text` that is a prefix of a stop string."""
        earliest = len(text)
        for stop in self._stops:
            start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while 0 <= start < earliest:
                if stop.startswith(text[start:]):
                    earliest = start
                    break
                start = text.find(stop[0], start + 1)
        return earliest
