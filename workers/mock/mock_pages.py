"""A mock worker's pages: how many are in use, and which prefixes the others still hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from slipstream.router.protocol.messages import RetentionHint
from slipstream.workers.interface.cache_changes import CacheChanges
from slipstream.workers.retention.eviction_order import EvictionOrder


class PageChain(Protocol):
    """The names of a sequence's full pages, in order."""

    @property
    def digests(self) -> list[bytes]: ...


Chain = TypeVar("Chain", bound=PageChain)


@dataclass(slots=True, eq=False)
class Lease(Generic[Chain]):
    """The pages of one attempt. The first `num_known` are known by the digests of its chain and may be shared; the
    others are its own. `chain` is None if there is no prefix cache."""

    chain: Chain | None
    num_pages: int = 0
    num_known: int = 0


@dataclass(slots=True)
class MockPages:
    """Counts pages like the engine's `PagePool`, but without page numbers. A known page that loses its last lease stays
    known until its room is needed; which goes first, `order` decides. Pages with equal content count once."""

    num_pages: int
    limit: int = field(init=False)  # how many of them may be leased or known
    changes: CacheChanges = field(default_factory=CacheChanges)
    _num_private: int = 0
    _num_leases: dict[bytes, int] = field(default_factory=dict)  # of known pages that have any
    order: EvictionOrder[bytes] = field(init=False)  # of known pages without a lease

    def __post_init__(self) -> None:
        self.limit = self.num_pages
        self.order = EvictionOrder(self.num_pages)

    def set_limit(self, num_pages: int) -> None:
        """At most so many pages are leased or known from now on, as soon as those leased beyond it are given back."""
        self.limit = max(0, min(num_pages, self.num_pages))
        self.order.set_capacity(self.limit)
        self._evict()

    @property
    def num_held(self) -> int:
        """Pages that may be in use: all below the limit, or those that are leased if that is more."""
        return max(self.limit, self.num_used)

    @property
    def num_used(self) -> int:
        return self._num_private + len(self._num_leases)

    @property
    def num_cached(self) -> int:
        """The number of known pages without a lease."""
        return len(self.order)

    @property
    def num_free(self) -> int:
        """The number of pages that hold nothing or could be evicted."""
        return self.limit - self._num_private - len(self._num_leases)

    def digests(self) -> Collection[bytes]:
        return [*self._num_leases, *self.order.keys()]

    def take(self, chain: Chain | None, num_pages: int, max_shared: int) -> Lease[Chain] | None:
        """A lease of so many pages, of which at most `max_shared` may be found in the cache by the chain's digests;
        None if there are not enough."""
        shared = self._match(chain, 0, max_shared)
        num_leased = sum(digest in self._num_leases for digest in shared) if shared else 0
        if num_pages - num_leased > self.num_free:
            return None
        for digest in shared:
            self._share(digest)
        lease = Lease(chain, len(shared), len(shared))
        self.grow(lease, num_pages - len(shared))
        return lease

    def find_more(self, lease: Lease[Chain], max_shared: int) -> None:
        """Looks again for known pages, because other attempts may have computed some of them meanwhile."""
        for digest in self._match(lease.chain, lease.num_known, max_shared):
            self._share(digest)
            self._num_private -= 1
            lease.num_known += 1

    def grow(self, lease: Lease[Chain], num_pages: int = 1) -> None:
        """Adds pages to a lease, even if there are none left: a mock worker overdraws its pages rather than
        preempting."""
        lease.num_pages += num_pages
        self._num_private += num_pages
        self._evict()

    def remember(self, lease: Lease[Chain], num_full: int) -> None:
        """The first `num_full` pages hold their KV now. Their digests have to be in the chain."""
        chain = lease.chain
        if chain is None:
            return
        for digest in chain.digests[lease.num_known : num_full]:
            if digest in self._num_leases or digest in self.order:
                self._share(digest)
            elif self.num_used > self.limit:
                return  # overdrawn: a real worker would not have this page
            else:
                self._num_leases[digest] = 1
                self.changes.store(digest)
            self._num_private -= 1
            lease.num_known += 1

    def give_back(self, lease: Lease[Chain], request_id: str = "", hint: RetentionHint | None = None) -> None:
        """The hint is that of the request, if it has ended."""
        self._num_private -= lease.num_pages - lease.num_known
        if lease.chain is not None:
            for digest in reversed(lease.chain.digests[: lease.num_known]):
                num_left = self._num_leases[digest] - 1
                if num_left:
                    self._num_leases[digest] = num_left
                else:
                    del self._num_leases[digest]
                    self.order.idle(digest)
            if hint is not None:
                self.order.hold(request_id, lease.chain.digests[: lease.num_known], hint)
        lease.num_pages = lease.num_known = 0
        self._evict()  # if more is leased than there is, less can stay known

    def _match(self, chain: PageChain | None, first: int, end: int) -> list[bytes]:
        """The known pages of a chain, from number `first` up to `end` or the first one that is unknown."""
        digests = chain.digests[first:end] if chain is not None else []
        for at, digest in enumerate(digests):
            if digest not in self._num_leases and digest not in self.order:
                return digests[:at]
        return digests

    def _evict(self) -> None:
        while self.order and self.num_used + len(self.order) > self.limit:
            self.changes.remove(self.order.pop())

    def _share(self, digest: bytes) -> None:
        num_leases = self._num_leases.get(digest, 0)
        if not num_leases:
            self.order.busy(digest)
        self._num_leases[digest] = num_leases + 1
