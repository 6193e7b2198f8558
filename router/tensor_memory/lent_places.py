"""Places lent to another process, until it has read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slipstream.router.tensor_memory.region_pool import RegionLease

PlaceKey = tuple[str, int]  # the key of a file, and the offset


@dataclass(slots=True)
class _Lent:
    num_places: int
    release: Callable[[], None] | None
    leases: Sequence[RegionLease]

    def end(self) -> None:
        if self.release is not None:
            self.release()
        for lease in self.leases:
            lease.release()


class LentPlaces:
    """What is lent together (the tensors of a response) goes back to its owner when the other process has released all
    of its places. The same place may have been lent several times."""

    def __init__(self) -> None:
        self._by_place: dict[PlaceKey, list[_Lent]] = {}
        self._num_lent = 0

    def __len__(self) -> int:
        return self._num_lent

    def add(
        self, places: Sequence[PlaceKey], release: Callable[[], None] | None, leases: Sequence[RegionLease]
    ) -> None:
        """`release` and the leases are called and ended then. If there are no places, that is now."""
        lent = _Lent(len(places), release, leases)
        if not places:
            lent.end()
            return
        self._num_lent += 1
        for place in places:
            self._by_place.setdefault(place, []).append(lent)

    def released(self, places: Iterable[PlaceKey]) -> None:
        """Unknown places are ignored: they were lent over an earlier connection."""
        for place in places:
            waiting = self._by_place.get(place)
            if waiting is None:
                continue
            lent = waiting.pop(0)
            if not waiting:
                del self._by_place[place]
            lent.num_places -= 1
            if not lent.num_places:
                self._num_lent -= 1
                lent.end()

    def end_all(self) -> None:
        """The other process is gone."""
        everything = {id(lent): lent for waiting in self._by_place.values() for lent in waiting}
        self._by_place.clear()
        self._num_lent = 0
        for lent in everything.values():
            lent.end()
