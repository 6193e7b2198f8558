"""The KV pages of one pool: the one place where pages are taken and given back."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

from slipstream.router.protocol.block_hash import HashChain
from slipstream.workers.engine.kv_cache.page_states import PageState, PageStates
from slipstream.workers.engine.kv_cache.prefix_cache import PrefixCache


class PagePool:
    """Free pages, owners, and the prefix cache that lives in the pages without an owner.

        take        free | evicted -> owned
        share       cached | owned -> owned once more
        give back   owned -> cached if its content is known, else free

    Pages are numbers `0 .. num_pages`; the KV itself is stored elsewhere. All page groups take theirs from here; a page
    belongs to a group for as long as it is owned or cached.

    Which cached page is evicted is `PrefixCache.order`'s to say.

    With a limit below `num_pages`, the others are withheld: free ones at once, then cached ones, in that order, and
    those in use when their last owner gives them back.

        withhold    free | evicted | given back -> withheld, its memory to be returned -> withheld
        allow       withheld -> free

    The memory of withheld pages is returned to the system by the caller of `take_returnable`.
    """

    def __init__(self, num_pages: int, num_groups: int = 1, followed: int = 0) -> None:
        self.num_pages = num_pages
        self._states = PageStates(num_pages)
        self.cache = PrefixCache(num_groups, followed, num_pages)
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: recently freed (warm) pages first, then low numbers
        self._limit = num_pages
        self._withheld: set[int] = set()
        self._to_return: set[int] = set()  # those of them whose memory has not been returned

    @property
    def num_available(self) -> int:
        """Pages that could be taken now: free or evictable."""
        return len(self._free) + self._states.count(PageState.CACHED)

    @property
    def limit(self) -> int:
        """How many pages may be in use or cached."""
        return self._limit

    @property
    def num_held(self) -> int:
        """Pages that may take memory: all but those that are withheld and whose memory has been returned."""
        return self.num_pages - len(self._withheld) + len(self._to_return)

    @property
    def num_used(self) -> int:
        return self.num_pages - len(self._withheld) - self.num_available

    @property
    def num_cached(self) -> int:
        """Cached pages that no sequence uses."""
        return self._states.count(PageState.CACHED)

    @property
    def has_returnable(self) -> bool:
        return bool(self._to_return)

    def counts(self) -> dict[str, int]:
        return self._states.counts()

    def set_limit(self, num_pages: int) -> None:
        """At most so many pages are in use or cached from now on, as soon as those in use beyond it are given back."""
        self._limit = max(0, min(num_pages, self.num_pages))
        self.cache.order.set_capacity(self._limit)
        if self._num_over > 0:
            self._shrink()
        elif self._num_over < 0:
            self._allow(-self._num_over)

    def take_returnable(self, max_pages: int) -> list[int]:
        """At most so many withheld pages, in order of their numbers, whose memory has not been returned. It counts as
        returned from now on, so the caller has to do so before any other call."""
        pages = sorted(self._to_return)[:max_pages]
        self._to_return.difference_update(pages)
        return pages

    def acquire(self, shared: Sequence[int], num_new: int, owner: PageState, spare: int = 0) -> array[int] | None:
        """Own the pages of a match and `num_new` others, leaving at least `spare` available.

        Returns all of them in order, or None, with nothing changed, where there are too few.
        """
        num_revived = sum(not self._states.is_owned(page) for page in shared)
        if num_new + num_revived + spare > self.num_available:
            return None
        for page in shared:
            if not self._states.is_owned(page):
                self.cache.busy(page)
            self._states.own(page, owner)
        pages = array("i", shared)
        for _ in range(num_new):
            pages.append(self._take(owner))
        return pages

    def release(self, pages: Sequence[int], owner: PageState) -> None:
        """Give back one ownership of each page. The last pages of a sequence will be evicted first, because a prefix is
        of no use without its beginning."""
        for page in reversed(pages):
            if self._states.disown(page, owner):
                continue
            if self._num_over > 0:
                if self._states.is_cached(page):
                    self._uncache(page)
                self._withhold(page)
            elif self._states.is_cached(page):
                self.cache.idle(page)
            else:
                self._free.append(page)

    def hand_over(self, pages: Iterable[int], owner: PageState, to: PageState) -> None:
        """Change the reason for which a sequence owns the pages."""
        for page in pages:
            self._states.own(page, to)
            self._states.disown(page, owner)

    def remember(
        self,
        pages: Sequence[int] | Mapping[int, int],
        chain: HashChain,
        tokens: array[int],
        first: int,
        end: int,
        group: int = 0,
    ) -> None:
        """Pages `first .. end` of a sequence now hold their KV: put them into the prefix cache. Where another page
        holds the same prefix already, that one stays and ours is freed with its sequence."""
        for at in range(first, end):
            if self.cache.insert(pages[at], chain, tokens, at, group):
                self._states.set_cached(pages[at], True)

    def remember_instead(
        self, pages: Sequence[int], chain: HashChain, tokens: array[int], first: int, end: int, group: int
    ) -> None:
        """As `remember`, but idle pages that hold the same prefix are dropped for ours."""
        chain.extend(tokens, end)
        for at in range(first, end):
            known = self.cache.page_of(chain.digests[at], group)
            if known is not None and self.is_idle(known):
                self.drop(known)
        self.remember(pages, chain, tokens, first, end, group)

    def forget(self, pages: Iterable[int]) -> None:
        """Remove these pages, which are owned, from the prefix cache."""
        for page in pages:
            assert self._states.is_owned(page)
            if self._states.is_cached(page):
                self._uncache(page)

    def is_idle(self, page: int) -> bool:
        """Whether it is cached and nothing owns it."""
        return self._states.state(page) is PageState.CACHED

    def drop(self, page: int) -> None:
        """Remove an idle page from the prefix cache."""
        self.cache.drop(page)
        self._states.set_cached(page, False)
        if self._num_over > 0:
            self._withhold(page)
        else:
            self._free.append(page)

    def _uncache(self, page: int) -> None:
        """Remove a page that is not idle from the prefix cache."""
        self.cache.forget(page)
        self._states.set_cached(page, False)

    @property
    def _num_over(self) -> int:
        """By how many pages the pool is over its limit; below 0: how many more may be allowed."""
        return self.num_pages - len(self._withheld) - self._limit

    def _shrink(self) -> None:
        """Withhold unused pages: free pages with high numbers first, so that what is left lies together."""
        self._free.sort(reverse=True)
        num_free = min(self._num_over, len(self._free))
        for page in self._free[:num_free]:
            self._withhold(page)
        del self._free[:num_free]
        for _ in range(min(self._num_over, self.num_cached)):
            page = self.cache.evict()
            self._states.set_cached(page, False)
            self._withhold(page)

    def _withhold(self, page: int) -> None:
        self._states.set_withheld(page, True)
        self._withheld.add(page)
        self._to_return.add(page)

    def _allow(self, num_pages: int) -> None:
        """Free withheld pages: those that still have their memory first, then low numbers."""
        withheld = sorted(self._withheld, key=lambda page: (page not in self._to_return, page))[:num_pages]
        for page in withheld:
            self._states.set_withheld(page, False)
        self._withheld.difference_update(withheld)
        self._to_return.difference_update(withheld)
        self._free[:0] = reversed(withheld)

    def _take(self, owner: PageState) -> int:
        if self._free:
            page = self._free.pop()
        else:
            page = self.cache.evict()
            self._states.set_cached(page, False)
        self._states.own(page, owner)
        return page

    def check_integrity(self, owned: Iterable[tuple[Sequence[int], PageState]]) -> None:
        """Raises AssertionError unless states, cache and free list agree with one another and with `owned`: the pages
        of every live sequence and what it owns them for."""
        self._states.check_integrity()
        num_owners: dict[tuple[int, PageState], int] = {}
        for pages, owner in owned:
            assert len(set(pages)) == len(pages), f"a sequence has a page twice: {pages}"
            for page in pages:
                num_owners[page, owner] = num_owners.get((page, owner), 0) + 1
        idle, free, withheld = [], [], set()
        for page in range(self.num_pages):
            for owner in (PageState.ACTIVE, PageState.RESERVED, PageState.HELD, PageState.DRAINING):
                booked = self._states.num_owners(page, owner)
                assert booked == num_owners.get((page, owner), 0), f"page {page} has {booked} {owner.name} owners"
            assert self._states.is_cached(page) == (page in self.cache), f"page {page} is cached in one book only"
            if self._states.state(page) is PageState.CACHED:
                idle.append(page)
            elif self._states.state(page) is PageState.FREE:
                free.append(page)
            elif self._states.state(page) is PageState.WITHHELD:
                withheld.add(page)
        assert withheld == self._withheld, "the withheld pages are booked otherwise"
        assert self._to_return <= withheld, "the memory of a page in use was to be returned"
        assert self._num_over <= 0 or not (idle or free), f"{self._num_over} pages are over the limit"
        assert self._num_over >= 0, f"{-self._num_over} pages are withheld below the limit"
        assert sorted(self._free) == free, "the free list is not the free pages"
        self.cache.check_integrity(idle)
