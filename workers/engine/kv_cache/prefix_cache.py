"""Which pages hold the KV of which prefixes.

Pages are identified by digests that chain over everything before them (`router.prefix.block_hash`). xxh3 is fast (far
less than a microsecond per page) but not safe against constructed collisions. So an entry also keeps its tokens and its
parent's digest, and a hit compares them. Then a wrong page could only come from a collision of two roots, which hash
the name of the model and a tenant's salt.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from slipstream.router.protocol.block_hash import HashChain
from slipstream.workers.interface.cache_changes import CacheChanges
from slipstream.workers.retention.eviction_order import EvictionOrder


@dataclass(frozen=True, slots=True)
class CachedPage:
    digest: bytes
    parent: bytes
    tokens: bytes
    group: int = 0


class PrefixCache:
    """Maps digests to pages, and knows which of the pages without owners is given up next (`order`).

    It does not count owners. `PagePool`, which does, calls `idle` when a known page loses its last owner, and `busy`
    when it gets one again. `changes` are what the worker reports to the router.

    A block has a page in each page group, which comes and goes by itself. `changes` are those of one group alone,
    `followed`. That is the first: one without a window if there is any, so it is needed for every hit. Where pages of
    other groups are gone, a hit is shorter than the router expects. Where sequences have states, further groups have
    the pages of those that were kept, at some blocks, and the last of them is followed (see `StateCheckpoints`).
    """

    def __init__(self, num_groups: int = 1, followed: int = 0, num_pages: int = 0) -> None:
        self.order = EvictionOrder[int](num_pages)
        self.changes = CacheChanges()
        self._followed = followed
        self._pages_of: tuple[dict[bytes, int], ...] = tuple({} for _ in range(num_groups))  # by group
        self._entries: dict[int, CachedPage] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def digests(self) -> Collection[bytes]:
        """The digests of all pages of the followed group that can be found."""
        return self._pages_of[self._followed].keys()

    def match(self, chain: HashChain, tokens: array[int], max_pages: int, group: int = 0) -> list[int]:
        """Pages of the longest known prefix of `tokens` in a group, at most `max_pages` of them, in order."""
        chain.extend(tokens, max_pages)
        view = memoryview(tokens).cast("B")
        page_of = self._pages_of[group]
        pages: list[int] = []
        for at in range(max_pages):
            page = page_of.get(chain.digests[at])
            if page is None:
                break
            entry = self._entries[page]
            wanted = view[at * chain.page_bytes : (at + 1) * chain.page_bytes]
            if entry.parent != chain.parent(at) or entry.tokens != wanted:
                break  # a collision
            pages.append(page)
        return pages

    def find(self, chain: HashChain, tokens: array[int], at: int, group: int) -> int | None:
        """The page of a group that holds block number `at` of `tokens`, which are hashed so far."""
        page = self._pages_of[group].get(chain.digests[at])
        if page is None:
            return None
        entry = self._entries[page]
        wanted = memoryview(tokens).cast("B")[at * chain.page_bytes : (at + 1) * chain.page_bytes]
        return page if entry.parent == chain.parent(at) and entry.tokens == wanted else None

    def insert(self, page: int, chain: HashChain, tokens: array[int], at: int, group: int = 0) -> bool:
        """Make known that `page` holds block number `at` of `tokens` in a group. False if another page already does."""
        chain.extend(tokens, at + 1)
        digest = chain.digests[at]
        page_of = self._pages_of[group]
        if digest in page_of or page in self._entries:
            return False
        content = memoryview(tokens).cast("B")[at * chain.page_bytes : (at + 1) * chain.page_bytes]
        page_of[digest] = page
        self._entries[page] = CachedPage(digest, chain.parent(at), bytes(content), group)
        if group == self._followed:
            self.changes.store(digest)
        return True

    def idle(self, page: int) -> None:
        self.order.idle(page)

    def busy(self, page: int) -> None:
        self.order.busy(page)

    def page_of(self, digest: bytes, group: int) -> int | None:
        """The page of a group that is known under a digest, whatever its tokens."""
        return self._pages_of[group].get(digest)

    def pages_of(self, digests: Iterable[bytes], group: int) -> list[int]:
        """The pages of a group that are known under any of these digests."""
        page_of = self._pages_of[group]
        return [page_of[digest] for digest in digests if digest in page_of]

    def touch(self, page: int) -> None:
        """It counts as used just now, if it is idle."""
        self.order.touch(page)

    def evict(self) -> int:
        """Forget the idle page that is next in order and return it. Raises KeyError if none is idle."""
        page = self.order.pop()
        self.forget(page)
        return page

    def drop(self, page: int) -> None:
        """Forget an idle page."""
        self.order.drop(page)
        self.forget(page)

    def forget(self, page: int) -> None:
        """Forget a page that is not idle."""
        self.order.forget(page)
        entry = self._entries.pop(page)
        del self._pages_of[entry.group][entry.digest]
        if entry.group == self._followed:
            self.changes.remove(entry.digest)

    def check_integrity(self, idle_pages: Sequence[int]) -> None:
        """Raises AssertionError unless all maps agree and exactly `idle_pages` can be evicted."""
        assert sum(map(len, self._pages_of)) == len(self._entries)
        for group, page_of in enumerate(self._pages_of):
            for digest, page in page_of.items():
                assert self._entries[page].digest == digest, f"page {page} is known under two digests"
                assert self._entries[page].group == group, f"page {page} is known in two groups"
        assert set(self.order.keys()) == set(idle_pages), "idle pages are not those cached and unowned"
        self.order.check_integrity()
