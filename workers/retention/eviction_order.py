"""Which of the cached pages that nothing uses is given up first: the least recently used, but for those that are held.

    pages of ended requests  --hint--> held until a deadline, or until something worth more needs their place
                             --------> least recently used first

A hold is on the pages of one ended request, which another one will probably go on from (an agent that waits for its
tool). Held pages are cached like others: they change the order alone, and are given up when nothing else is left. A
page of several holds, such as one of a common system prompt, is held until the last of them ends, and then stands where
its last use puts it among the others.

Which hold ends first when there are too many: that with the least value, in seconds of prefill that a page saves by
each second that it is kept, as hit density in LHD (Beckmann et al., NSDI 2018). Those that clients ask for, or that a
request waits for, come after those that were guessed. A tenant that holds more than an equal share of what may be held
loses its own first.

Everything but `hold`, `retain` and their ends takes constant time; an end takes a moment for each of its pages, each of
which was held before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from slipstream.router.protocol.messages import RetentionHint

MAX_SHARE = 0.9  # of the pages may be held: the rest is left to requests that come without a hint
MAX_HOLDS = 4096
SPARE_ENTRIES = 64  # a heap is tidied when it has so many more entries than twice those that count

K = TypeVar("K")
Rank = tuple[bool, float]


@dataclass(slots=True)
class RetentionCounts:
    """Pages. `num_held` are held now, used or not. Totals: `hits` were found by a request while they were held;
    `expired` were held to the deadline and not used since; `displaced` had to make room before."""

    num_held: int = 0
    hits: int = 0
    expired: int = 0
    displaced: int = 0


@dataclass(slots=True, eq=False)
class _Hold(Generic[K]):
    """`num_pages` are those that count as its own: of a page with several holds, it is that of the first one."""

    request_id: str
    tenant: _Tenant[K]
    keys: Sequence[K]
    until_s: float
    rank: Rank
    entry: int  # its number in the heaps; older ones no longer count
    num_pages: int = 0


@dataclass(slots=True)
class _Tenant(Generic[K]):
    name: str
    num_pages: int = 0
    num_holds: int = 0
    by_rank: list[tuple[Rank, int, _Hold[K]]] = field(default_factory=list)

    def least(self) -> _Hold[K]:
        """Its hold of the least value. There is one."""
        while self.by_rank[0][2].entry != self.by_rank[0][1]:
            heappop(self.by_rank)
        return self.by_rank[0][2]


class EvictionOrder(Generic[K]):
    """The idle pages, by number or by name (`K`), in order. `capacity`: how many pages there are. Sans-IO: `advance`
    says what time it is."""

    def __init__(self, capacity: int = 0, max_share: float = MAX_SHARE) -> None:
        self.counts = RetentionCounts()
        self._max_share = max_share
        self._capacity = capacity
        self._now_s = 0.0
        self._uses = count()
        self._entries = count()
        self._idle: OrderedDict[K, int] = OrderedDict()  # not held, with the number of their last use; the oldest first
        self._late: list[tuple[int, K]] = []  # a heap of those that are no longer held, behind the uses of others
        self._late_uses: dict[K, int] = {}  # which of its entries count
        self._idle_held: dict[K, int] = {}
        self._holds: dict[str, _Hold[K]] = {}  # by request
        self._holders: dict[K, _Hold[K] | dict[_Hold[K], None]] = {}  # of each held page, idle or not
        self._tenants: dict[str, _Tenant[K]] = {}
        self._deadlines: list[tuple[float, int, _Hold[K]]] = []

    def __len__(self) -> int:
        return len(self._idle) + len(self._late_uses) + len(self._idle_held)

    def __contains__(self, key: K) -> bool:
        return key in self._idle or key in self._idle_held or key in self._late_uses

    def keys(self) -> Collection[K]:
        """All idle pages, in no order."""
        return [*self._idle, *self._late_uses, *self._idle_held]

    def set_capacity(self, num_pages: int) -> None:
        self._capacity = num_pages
        self._fit()

    def idle(self, key: K) -> None:
        """A page lost its last owner: it was used just now."""
        if key in self._holders:
            self._idle_held[key] = next(self._uses)
        else:
            self._idle[key] = next(self._uses)

    def busy(self, key: K) -> None:
        """An idle page gets an owner again."""
        if self._idle.pop(key, None) is not None:
            return
        if self._idle_held.pop(key, None) is not None:
            self.counts.hits += 1
        else:
            del self._late_uses[key]

    def touch(self, key: K) -> None:
        """An idle page counts as used just now."""
        if key in self._idle:
            self._idle[key] = next(self._uses)
            self._idle.move_to_end(key)
        elif key in self._idle_held:
            self._idle_held[key] = next(self._uses)
        elif self._late_uses.pop(key, None) is not None:
            self._idle[key] = next(self._uses)

    def pop(self) -> K:
        """The idle page to be given up next, which is one no longer. Raises KeyError if none is idle."""
        while not (self._idle or self._late_uses):
            if not self._holds:
                raise KeyError("no page is idle")
            self._displace()
        late = self._late
        while late and self._late_uses.get(late[0][1]) != late[0][0]:
            heappop(late)
        if late and (not self._idle or late[0][0] < next(iter(self._idle.values()))):
            key = heappop(late)[1]
            del self._late_uses[key]
            return key
        return self._idle.popitem(last=False)[0]

    def forget(self, key: K) -> None:
        """A page that is not idle holds something else from now on."""
        holders = self._holders.pop(key, None)
        if holders is not None:
            self._charge(next(iter(holders)) if isinstance(holders, dict) else holders, -1)

    def drop(self, key: K) -> None:
        """As `forget`, for an idle page."""
        if self._idle_held.pop(key, None) is None and self._idle.pop(key, None) is None:
            del self._late_uses[key]
        self.forget(key)

    def advance(self, now_s: float) -> None:
        """It is so late, in seconds of any monotonic clock: what was held until then is so no longer."""
        self._now_s = now_s
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, entry, hold = heappop(self._deadlines)
            if hold.entry == entry:
                del self._holds[hold.request_id]
                self.counts.expired += self._end(hold)

    def hold(self, request_id: str, keys: Iterable[K], hint: RetentionHint) -> None:
        """A request has ended that used these pages, which are all known to the cache. Without pages, nothing
        changes."""
        own = tuple(keys)
        if not own:
            return
        before, repeated = self._holds.get(hint.continues), self._holds.pop(request_id, None)
        tenant = self._tenants.get(hint.tenant)
        if hint.keep_s > 0.0 and before is not None and before.tenant is tenant and before is not repeated:
            self._go_on(before, request_id, own)
            self._rank(before, hint)
            before = None
        elif hint.keep_s > 0.0:
            if tenant is None:
                tenant = self._tenants[hint.tenant] = _Tenant(hint.tenant)
            hold = self._holds[request_id] = _Hold(request_id, tenant, own, 0.0, (False, 0.0), -1)
            tenant.num_holds += 1
            for key in own:
                self._add(key, hold)
            self._rank(hold, hint)
        if before is not None and before is not repeated:
            del self._holds[before.request_id]
            self._end(before)
        if repeated is not None:
            self._end(repeated)
        self._fit()

    def retain(self, request_id: str, hint: RetentionHint) -> None:
        """A better hint about a request that has ended. Unknown ones are ignored."""
        hold = self._holds.get(request_id)
        if hold is None:
            return
        if hint.keep_s > 0.0:
            self._rank(hold, hint)
        else:
            del self._holds[request_id]
            self._end(hold)

    def check_integrity(self) -> None:
        """Raises AssertionError unless pages, holds and tenants agree. Looks at everything, for tests."""
        idle, late, held = self._idle.keys(), self._late_uses.keys(), self._idle_held.keys()
        assert len(idle | late | held) == len(self), "an idle page is in two orders"
        assert held <= self._holders.keys(), "a page is kept for no hold"
        assert not self._holders.keys() & (idle | late), "a held page is among the others"
        own: dict[_Hold[K], int] = {}
        for holders in self._holders.values():
            assert not isinstance(holders, dict) or len(holders) > 1
            first = next(iter(holders)) if isinstance(holders, dict) else holders
            own[first] = own.get(first, 0) + 1
        holds = set(self._holds.values())
        assert own.keys() <= holds, "a page is held by a hold that has ended"
        for hold in holds:
            assert hold.num_pages == own.get(hold, 0)
        for tenant in self._tenants.values():
            of_tenant = [hold for hold in holds if hold.tenant is tenant]
            assert 0 < tenant.num_holds == len(of_tenant)
            assert tenant.num_pages == sum(hold.num_pages for hold in of_tenant)
        assert self.counts.num_held == len(self._holders) <= max(self._max_held, 0)

    @property
    def _max_held(self) -> int:
        return int(self._max_share * self._capacity)

    def _go_on(self, hold: _Hold[K], request_id: str, keys: Sequence[K]) -> None:
        """A hold is that of a later request from now on, most of whose pages it has already."""
        del self._holds[hold.request_id]
        self._holds[request_id] = hold
        hold.request_id = request_id
        holders, later = self._holders, set(keys)
        for key in [key for key in keys if holders.get(key) is not hold]:
            self._add(key, hold)
        for key in [key for key in hold.keys if key not in later]:
            self._remove(key, hold)
        hold.keys = keys

    def _rank(self, hold: _Hold[K], hint: RetentionHint) -> None:
        tenant = hold.tenant
        hold.rank = hint.is_pinned, hint.value
        hold.until_s = self._now_s + hint.keep_s
        hold.entry = next(self._entries)
        if len(tenant.by_rank) > 2 * tenant.num_holds + SPARE_ENTRIES:
            tenant.by_rank = [one for one in tenant.by_rank if one[2].entry == one[1]]
            heapify(tenant.by_rank)
        heappush(tenant.by_rank, (hold.rank, hold.entry, hold))
        if len(self._deadlines) > 2 * len(self._holds) + SPARE_ENTRIES:
            self._deadlines = [one for one in self._deadlines if one[2].entry == one[1]]
            heapify(self._deadlines)
        heappush(self._deadlines, (hold.until_s, hold.entry, hold))

    def _fit(self) -> None:
        """Ends holds until no more pages are held than allowed."""
        while self.counts.num_held > self._max_held or len(self._holds) > MAX_HOLDS:
            self._displace()

    def _displace(self) -> None:
        """The hold that is worth least ends, of the tenants that have more than an equal share if there are any."""
        share = self._max_held / len(self._tenants)
        greedy = [tenant for tenant in self._tenants.values() if tenant.num_pages > share]
        least = min((tenant.least() for tenant in greedy or self._tenants.values()), key=lambda h: (h.rank, h.entry))
        del self._holds[least.request_id]
        self.counts.displaced += self._end(least)

    def _end(self, hold: _Hold[K]) -> int:
        """A hold, which was taken out of `_holds`, is over. Returns how many idle pages are no longer held."""
        num_idle = sum([self._remove(key, hold) for key in hold.keys])
        hold.entry = -1
        tenant = hold.tenant
        tenant.num_holds -= 1
        if not tenant.num_holds:
            del self._tenants[tenant.name]
        return num_idle

    def _add(self, key: K, hold: _Hold[K]) -> None:
        holders = self._holders.get(key)
        if holders is None:
            self._holders[key] = hold
            self._charge(hold, 1)
            use = self._idle.pop(key, None)
            if use is None:
                use = self._late_uses.pop(key, None)
            if use is not None:
                self._idle_held[key] = use
        elif isinstance(holders, dict):
            holders[hold] = None
        elif holders is not hold:
            self._holders[key] = {holders: None, hold: None}

    def _remove(self, key: K, hold: _Hold[K]) -> bool:
        """Returns whether the page is idle and no longer held."""
        holders = self._holders.get(key)
        if holders is hold:
            del self._holders[key]
            self._charge(hold, -1)
            use = self._idle_held.pop(key, None)
            if use is None:
                return False
            self._late_uses[key] = use
            if len(self._late) > 2 * len(self._late_uses) + SPARE_ENTRIES:
                self._late = [(use, key) for key, use in self._late_uses.items()]
                heapify(self._late)
            else:
                heappush(self._late, (use, key))
            return True
        if isinstance(holders, dict) and hold in holders:
            was_first = next(iter(holders)) is hold
            del holders[hold]
            first = next(iter(holders))
            if was_first:
                self._charge(hold, -1)
                self._charge(first, 1)
            if len(holders) == 1:
                self._holders[key] = first
        return False

    def _charge(self, hold: _Hold[K], num_pages: int) -> None:
        hold.num_pages += num_pages
        hold.tenant.num_pages += num_pages
        self.counts.num_held += num_pages
