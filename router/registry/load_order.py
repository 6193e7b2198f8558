"""Workers in the order of their load, so that the least loaded of a thousand are found without a look at the others."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class LoadOrder(Generic[Item]):
    """Sorted by `load_of`, the least first, then in the order they were added. An item whose load may have changed is
    named in `changed`, and put in its new place when the order is read next. So many changes between two reads cost
    one move each: O(log n) comparisons and a shift of pointers."""

    def __init__(self, load_of: Callable[[Item], float]) -> None:
        self._load_of = load_of
        self._order: list[tuple[float, int, Item]] = []
        self._places: dict[Item, tuple[float, int]] = {}
        self._num_added = 0
        self.changed: set[Item] = set()

    def __len__(self) -> int:
        return len(self._order)

    def add(self, item: Item) -> None:
        assert item not in self._places
        self._num_added += 1
        self._insert(item, self._num_added)

    def discard(self, item: Item) -> None:
        self.changed.discard(item)
        place = self._places.pop(item, None)
        if place is not None:
            self._remove(place)

    def __iter__(self) -> Iterator[Item]:
        """The least loaded first. Nothing may change meanwhile."""
        for item in self.changed:
            place = self._places.get(item)
            if place is not None and place[0] != self._load_of(item):
                self._remove(place)
                self._insert(item, place[1])
        self.changed.clear()
        return (item for _, _, item in self._order)

    def _insert(self, item: Item, number: int) -> None:
        place = (self._load_of(item), number)
        self._places[item] = place
        # The number is unique: items themselves are never compared.
        insort(self._order, (*place, item))

    def _remove(self, place: tuple[float, int]) -> None:
        del self._order[bisect_left(self._order, place)]
