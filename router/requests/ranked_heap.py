"""A heap from whose middle entries can be removed, and which can be walked in order without being emptied."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

SLACK = 16  # so many dead entries are not worth a clean-up


class RankedHeap(Generic[T]):
    """Items by ascending rank; items of equal rank in the order in which they were added.

    Adding, removing and reading the first are O(log n) on average: a removed item stays in the heap as a dead entry
    until it reaches the top, or until dead entries outnumber live ones.
    """

    __slots__ = ("_heap", "_live", "_num_pushed")

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, T]] = []
        self._live: dict[T, int] = {}  # the number of each item's live entry
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: T) -> bool:
        return item in self._live

    def push(self, rank: Any, item: T) -> None:
        """Adds an item, or changes its rank."""
        if len(self._heap) > 2 * len(self._live) + SLACK:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)
        self._num_pushed += 1
        self._live[item] = self._num_pushed
        heapq.heappush(self._heap, (rank, self._num_pushed, item))

    def discard(self, item: T) -> None:
        self._live.pop(item, None)

    def first(self) -> T:
        """The item with the lowest rank. Raises IndexError if there is none."""
        while True:
            _, number, item = self._heap[0]
            if self._live.get(item) == number:
                return item
            heapq.heappop(self._heap)

    def __iter__(self) -> Iterator[T]:
        """The items in order, lazily: the first k cost O(k log k). Not to be changed during the iteration."""
        if not self._live:
            return
        yield self.first()  # this also removes dead entries from the top
        heap = self._heap
        frontier = [(heap[child], child) for child in (1, 2) if child < len(heap)]
        heapq.heapify(frontier)
        while frontier:
            (_, number, item), at = heapq.heappop(frontier)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(frontier, (heap[child], child))
            if self._live.get(item) == number:
                yield item
