"""Finds any of several texts in a growing text."""

from __future__ import annotations

import re
from functools import lru_cache


class MarkerSet:
    """The first of its texts that occurs, the longest of those that begin at one place."""

    __slots__ = ("_longest", "_pattern", "_texts")

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = tuple(sorted({text for text in texts if text}, key=len, reverse=True))
        self._longest = max(map(len, self._texts), default=0)
        self._pattern = re.compile("|".join(map(re.escape, self._texts)) or r"(?!)")

    def find(self, text: str, start: int, is_final: bool = False) -> tuple[int, str | None]:
        """Where the first text begins, and which; or else how far none of them begins, and None. `is_final`: nothing
        comes behind `text`."""
        found = self._pattern.search(text, start)
        if is_final or self._longest == 1:
            return (found.start(), found[0]) if found else (len(text), None)
        possible = self._possible_start(text, start)
        if found and found.start() < possible:
            return found.start(), found[0]
        return possible, None

    def _possible_start(self, text: str, start: int) -> int:
        """The earliest place from which the rest of `text` may become one of the texts."""
        earliest = len(text)
        for marker in self._texts:
            at = text.find(marker[0], max(start, len(text) - len(marker) + 1))
            while 0 <= at < earliest:
                if marker.startswith(text[at:]):
                    earliest = at
                    break
                at = text.find(marker[0], at + 1)
        return earliest


@lru_cache(maxsize=1024)
def marker_set(texts: tuple[str, ...]) -> MarkerSet:
    """Made once for the texts of a format."""
    return MarkerSet(texts)
