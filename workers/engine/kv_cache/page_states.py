"""Who owns each KV page. Every page has one named state at every moment, and pages are counted by state.

A page may have several owners, because sequences share prefixes. Its state is the first of these that applies:

    active    a sequence that runs writes or reads it
    reserved  leased for KV that is on its way here
    held      computed, and kept in place until it has been sent
    draining  its sequence is gone, but a transfer may still touch it
    cached    not owned; holds the KV of a known prefix, and may be evicted
    free      not owned; holds nothing
    withheld  not owned, holds nothing, and may not be taken: it is above the pool's limit
"""

from __future__ import annotations

from array import array
from enum import IntEnum


class PageState(IntEnum):
    ACTIVE = 0
    RESERVED = 1
    HELD = 2
    DRAINING = 3
    CACHED = 4
    FREE = 5
    WITHHELD = 6


OWNERS = (PageState.ACTIVE, PageState.RESERVED, PageState.HELD, PageState.DRAINING)  # in order of precedence


class PageStates:
    """Owners of `num_pages` pages, all free at first."""

    def __init__(self, num_pages: int) -> None:
        self._num_owners = tuple(array("i", bytes(4 * num_pages)) for _ in OWNERS)
        self._is_cached = bytearray(num_pages)
        self._is_withheld = bytearray(num_pages)
        self._states = bytearray([PageState.FREE]) * num_pages
        self._counts = [0] * len(PageState)
        self._counts[PageState.FREE] = num_pages

    def state(self, page: int) -> PageState:
        return PageState(self._states[page])

    def is_owned(self, page: int) -> bool:
        return self._states[page] < PageState.CACHED

    def is_cached(self, page: int) -> bool:
        """Whether the prefix cache knows the page, owned or not."""
        return bool(self._is_cached[page])

    def own(self, page: int, owner: PageState) -> None:
        self._num_owners[owner][page] += 1
        if owner < self._states[page]:
            self._move(page, owner)

    def disown(self, page: int, owner: PageState) -> bool:
        """Take one ownership back. Returns whether the page still has an owner."""
        owners = self._num_owners[owner]
        assert owners[page] > 0, f"page {page} has no {owner.name.lower()} owner"
        owners[page] -= 1
        if owners[page] == 0:
            self._settle(page)
        return self.is_owned(page)

    def set_cached(self, page: int, cached: bool) -> None:
        self._is_cached[page] = cached
        self._settle(page)

    def set_withheld(self, page: int, withheld: bool) -> None:
        """Forbid a free page to be taken, or allow it again."""
        assert not self.is_owned(page), f"page {page} is in use"
        assert not self._is_cached[page], f"page {page} is cached"
        self._is_withheld[page] = withheld
        self._settle(page)

    def count(self, state: PageState) -> int:
        return self._counts[state]

    def counts(self) -> dict[str, int]:
        """Number of pages by state name; they sum to the size of the pool. `withheld` is left out if there are none."""
        counts = {state.name.lower(): self._counts[state] for state in PageState}
        if not self._counts[PageState.WITHHELD]:
            del counts["withheld"]
        return counts

    def check_integrity(self) -> None:
        """Raises AssertionError if the counts or states do not follow from the owners."""
        counts = [0] * len(PageState)
        for page, state in enumerate(self._states):
            assert state == self._derived(page), f"page {page} is booked as {PageState(state).name}"
            assert not self._is_withheld[page] or state == PageState.WITHHELD, f"page {page} is withheld and in use"
            counts[state] += 1
        assert counts == self._counts, f"counted {counts}, booked {self._counts}"

    def num_owners(self, page: int, owner: PageState) -> int:
        return self._num_owners[owner][page]

    def _derived(self, page: int) -> PageState:
        for owner in OWNERS:
            if self._num_owners[owner][page]:
                return owner
        if self._is_withheld[page]:
            return PageState.WITHHELD
        return PageState.CACHED if self._is_cached[page] else PageState.FREE

    def _settle(self, page: int) -> None:
        state = self._derived(page)
        if state != self._states[page]:
            self._move(page, state)

    def _move(self, page: int, state: PageState) -> None:
        self._counts[self._states[page]] -= 1
        self._counts[state] += 1
        self._states[page] = state
