"""Which pages hold the KV of which prefixes.

A full page is known by a digest that chains over everything before it:

    root      = xxh3_128(model | salt)
    digest(0) = xxh3_128(root      | tokens of page 0)
    digest(1) = xxh3_128(digest(0) | tokens of page 1) ...

so equal digests mean equal prefixes of the same model within the same salt. xxh3 is fast (far under a microsecond a
page) but not made to withstand someone who constructs collisions; therefore an entry also keeps its tokens and its
parent's digest and a hit compares them. A wrong page could then only come from a collision of two roots, which hash
the operator's model id and a tenant's salt.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_128_digest


def root_digest(model_id: str, cache_salt: str) -> bytes:
    """The digest before the first page. Lengths are part of it: ("ab", "c") and ("a", "bc") differ."""
    model, salt = model_id.encode(), cache_salt.encode()
    digest: bytes = xxh3_128_digest(b"%d:%b%d:%b" % (len(model), model, len(salt), salt))
    return digest


class HashChain:
    """Digests of the full pages of one growing token sequence; each page is hashed once."""

    __slots__ = ("digests", "page_bytes", "root")

    def __init__(self, root: bytes, page_tokens: int) -> None:
        self.root = root
        self.digests: list[bytes] = []
        self.page_bytes = page_tokens * 4  # of int32 token ids

    def extend(self, tokens: array[int], num_pages: int) -> None:
        """Hash on until `num_pages` pages are known. `tokens` is the whole sequence as int32."""
        view = memoryview(tokens).cast("B")
        for at in range(len(self.digests), num_pages):
            page = view[at * self.page_bytes : (at + 1) * self.page_bytes]
            self.digests.append(xxh3_128_digest(self.parent(at) + bytes(page)))

    def parent(self, at: int) -> bytes:
        return self.digests[at - 1] if at else self.root


@dataclass(frozen=True, slots=True)
class CachedPage:
    digest: bytes
    parent: bytes
    tokens: bytes


class PrefixCache:
    """Digest -> page, and which of the pages nobody owns was used least recently.

    It knows pages, it does not count owners: whoever does (`PagePool`) calls `idle` when a known page loses its last
    owner and `busy` when it gets one again.
    """

    def __init__(self) -> None:
        self._page_of: dict[bytes, int] = {}
        self._entries: dict[int, CachedPage] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first

    def __contains__(self, page: int) -> bool:
        return page in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, chain: HashChain, tokens: array[int], max_pages: int) -> list[int]:
        """Pages of the longest known prefix of `tokens`, at most `max_pages` of them, in order."""
        chain.extend(tokens, max_pages)
        view = memoryview(tokens).cast("B")
        pages: list[int] = []
        for at in range(max_pages):
            page = self._page_of.get(chain.digests[at])
            if page is None:
                break
            entry = self._entries[page]
            wanted = view[at * chain.page_bytes : (at + 1) * chain.page_bytes]
            if entry.parent != chain.parent(at) or entry.tokens != wanted:
                break  # a collision
            pages.append(page)
        return pages

    def insert(self, page: int, chain: HashChain, tokens: array[int], at: int) -> bool:
        """Make known that `page` holds page number `at` of `tokens`. False if another page already does."""
        chain.extend(tokens, at + 1)
        digest = chain.digests[at]
        if digest in self._page_of or page in self._entries:
            return False
        content = memoryview(tokens).cast("B")[at * chain.page_bytes : (at + 1) * chain.page_bytes]
        self._page_of[digest] = page
        self._entries[page] = CachedPage(digest, chain.parent(at), bytes(content))
        return True

    def idle(self, page: int) -> None:
        self._idle[page] = None

    def busy(self, page: int) -> None:
        del self._idle[page]

    def evict_oldest(self) -> int:
        """Forget the idle page that was used least recently and return it. Raises KeyError if none is idle."""
        page, _ = self._idle.popitem(last=False)
        self.forget(page)
        return page

    def forget(self, page: int) -> None:
        """A page that is not idle is known no more."""
        del self._page_of[self._entries.pop(page).digest]

    def check_integrity(self, idle_pages: Sequence[int]) -> None:
        """Raises AssertionError unless both maps agree and exactly `idle_pages` can be evicted."""
        assert len(self._page_of) == len(self._entries)
        for digest, page in self._page_of.items():
            assert self._entries[page].digest == digest, f"page {page} is known under two digests"
        assert set(self._idle) == set(idle_pages), "idle pages are not those cached and unowned"
