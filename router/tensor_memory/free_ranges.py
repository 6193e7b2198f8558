"""Which ranges of a region are free. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(slots=True)
class _Free:
    start: int
    end: int


class FreeRanges:
    """The free parts of `[0, size)`, in order, no two of them adjacent.

    A range is taken from the first free part that is large enough. So places near the beginning, whose pages exist
    already, are used again and again, and the end stays untouched until it is needed.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = [_Free(0, size)] if size else []

    @property
    def num_free(self) -> int:
        return sum(part.end - part.start for part in self._free)

    def parts(self) -> list[tuple[int, int]]:
        """The start and the end of each."""
        return [(part.start, part.end) for part in self._free]

    @property
    def used_end(self) -> int:
        """Nothing is in use from here on."""
        if self._free and self._free[-1].end == self.size:
            return self._free[-1].start
        return self.size

    def take(self, count: int) -> int | None:
        """The start of `count` units that are now in use; None: no free part is that large."""
        for index, part in enumerate(self._free):
            start = part.start
            if part.end - start >= count:
                part.start += count
                if part.start == part.end:
                    del self._free[index]
                return start
        return None

    def give(self, start: int, count: int) -> None:
        """Frees what was taken. Raises ValueError if a part of it is free."""
        end = start + count
        index = bisect_left(self._free, start, key=lambda part: part.start)
        before = self._free[index - 1] if index else None
        after = self._free[index] if index < len(self._free) else None
        if start < 0 or end > self.size or (before and before.end > start) or (after and after.start < end):
            raise ValueError(f"[{start}, {end}) of {self.size} is not in use")
        if before and before.end == start:
            before.end = end
            if after and after.start == end:
                before.end = after.end
                del self._free[index]
        elif after and after.start == end:
            after.start = start
        else:
            self._free.insert(index, _Free(start, end))
