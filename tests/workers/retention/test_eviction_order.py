"""The order in which pages are evicted, beside a plain reference."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipstream.router.protocol.messages import RetentionHint
from slipstream.workers.retention.eviction_order import EvictionOrder

NUM_PAGES = 10
SHARE = 0.5


@dataclass
class ReferenceHold:
    tenant: str
    pages: set[int]
    rank: tuple[bool, float]
    until_s: float
    number: int


class Reference:
    """As the docstring of the order says it, by looking at everything each time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.capacity = NUM_PAGES
        self.uses: dict[int, int] = {}  # of idle pages
        self.holders: dict[int, list[str]] = {}
        self.holds: dict[str, ReferenceHold] = {}
        self.clock = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def num_held(self, tenant: str | None = None) -> int:
        firsts = [self.holds[names[0]].tenant for names in self.holders.values()]
        return len(firsts) if tenant is None else firsts.count(tenant)

    def end(self, name: str) -> None:
        del self.holds[name]
        for page, names in list(self.holders.items()):
            if name in names:
                names.remove(name)
            if not names:
                del self.holders[page]

    def rename(self, name: str, to: str) -> None:
        self.holds[to] = self.holds.pop(name)
        self.holders = {page: [to if one == name else one for one in names] for page, names in self.holders.items()}

    def displace(self) -> None:
        tenants = {hold.tenant for hold in self.holds.values()}
        share = int(SHARE * self.capacity) / len(tenants)
        greedy = {tenant for tenant in tenants if self.num_held(tenant) > share} or tenants
        among = {name: hold for name, hold in self.holds.items() if hold.tenant in greedy}
        self.end(min(among, key=lambda name: (among[name].rank, among[name].number)))

    def fit(self) -> None:
        while self.num_held() > int(SHARE * self.capacity):
            self.displace()

    def pop(self) -> int:
        while not (free := {page: use for page, use in self.uses.items() if page not in self.holders}):
            self.displace()
        page = min(free, key=lambda page: free[page])
        del self.uses[page]
        return page


HINTS = st.builds(
    RetentionHint,
    keep_s=st.sampled_from([0.0, 1.0, 3.0, 10.0]),
    value=st.sampled_from([0.1, 0.2, 0.4]),
    tenant=st.sampled_from(["a", "b", "c"]),
    is_pinned=st.booleans(),
    continues=st.sampled_from(["", "r1", "r2", "r3"]),
)
NAMES = st.sampled_from(["r1", "r2", "r3", "r4", "r5"])


class OrderMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.order = EvictionOrder[int](NUM_PAGES, SHARE)
        self.model = Reference()
        self.busy = set(range(NUM_PAGES))  # known to the cache, and in use
        self.unknown: set[int] = set()

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def released(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.busy)))
        self.busy.remove(page)
        self.order.idle(page)
        self.model.uses[page] = self.model.tick()

    @precondition(lambda self: self.model.uses)
    @rule(data=st.data())
    def found(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.model.uses)))
        hits = self.order.counts.hits
        self.order.busy(page)
        assert self.order.counts.hits - hits == (page in self.model.holders)
        del self.model.uses[page]
        self.busy.add(page)

    @precondition(lambda self: self.model.uses)
    @rule(data=st.data())
    def touched(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.model.uses)))
        self.order.touch(page)
        self.model.uses[page] = self.model.tick()

    @rule()
    def evicted(self) -> None:
        if not self.model.uses:
            with pytest.raises(KeyError):
                self.order.pop()
            self.model.holds.clear()
            self.model.holders.clear()
            return
        page = self.order.pop()
        assert page == self.model.pop()
        self.order.forget(page)
        self.unknown.add(page)

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def forgotten(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.busy)))
        self.order.forget(page)
        self.model.holders.pop(page, None)
        self.busy.remove(page)
        self.unknown.add(page)

    @precondition(lambda self: self.model.uses)
    @rule(data=st.data())
    def dropped(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.model.uses)))
        self.order.drop(page)
        self.model.holders.pop(page, None)
        del self.model.uses[page]
        self.unknown.add(page)

    @precondition(lambda self: self.unknown)
    @rule(data=st.data())
    def stored(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.unknown)))
        self.unknown.remove(page)
        self.busy.add(page)

    @rule(data=st.data(), name=NAMES, hint=HINTS)
    def ended(self, data: st.DataObject, name: str, hint: RetentionHint) -> None:
        known = sorted(self.busy | self.model.uses.keys())
        pages = data.draw(st.sets(st.sampled_from(known), max_size=6)) if known else set()
        self.order.hold(name, pages, hint)
        if not pages:
            return
        model = self.model
        if name in model.holds:
            model.rename(name, "before")
        rank, until_s = (hint.is_pinned, hint.value), model.now_s + hint.keep_s
        continued = model.holds.get(hint.continues) if hint.continues != name else None
        if hint.keep_s > 0.0 and continued is not None and continued.tenant == hint.tenant:
            model.rename(hint.continues, name)
            for page, names in list(model.holders.items()):
                if name in names and page not in pages:
                    names.remove(name)
                if not names:
                    del model.holders[page]
        if hint.keep_s > 0.0:
            model.holds[name] = ReferenceHold(hint.tenant, pages, rank, until_s, model.tick())
            for page in pages:
                names = model.holders.setdefault(page, [])
                if name not in names:
                    names.append(name)
        for gone in ("before", hint.continues if continued is not None else ""):
            if gone in model.holds:
                model.end(gone)
        model.fit()

    @rule(name=NAMES, hint=HINTS)
    def hinted(self, name: str, hint: RetentionHint) -> None:
        self.order.retain(name, hint)
        hold = self.model.holds.get(name)
        if hold is not None and hint.keep_s > 0.0:
            hold.rank, hold.number = (hint.is_pinned, hint.value), self.model.tick()
            hold.until_s = self.model.now_s + hint.keep_s
        elif hold is not None:
            self.model.end(name)

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.model.now_s += seconds
        self.order.advance(self.model.now_s)
        for name, hold in list(self.model.holds.items()):
            if hold.until_s <= self.model.now_s:
                self.model.end(name)

    @rule(capacity=st.integers(2, NUM_PAGES))
    def resized(self, capacity: int) -> None:
        self.model.capacity = capacity
        self.order.set_capacity(capacity)
        self.model.fit()

    @invariant()
    def books_agree(self) -> None:
        self.order.check_integrity()
        assert set(self.order.keys()) == self.model.uses.keys()
        assert len(self.order) == len(self.model.uses)
        assert self.order.counts.num_held == self.model.num_held()

    def teardown(self) -> None:
        self.order.advance(self.model.now_s + 100.0)
        self.model.holds.clear()
        self.model.holders.clear()
        assert self.order.counts.num_held == 0
        while self.model.uses:
            assert self.order.pop() == self.model.pop()


OrderMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestEvictionOrder = OrderMachine.TestCase


def idle_order(*pages: int) -> EvictionOrder[int]:
    order = EvictionOrder[int](8)
    for page in pages:
        order.idle(page)
    return order


def test_without_hints_the_least_recently_used_goes_first() -> None:
    order = idle_order(3, 1, 2)
    order.touch(3)
    assert [order.pop() for _ in range(3)] == [1, 2, 3]


def test_held_pages_outlive_later_ones_until_the_deadline() -> None:
    order = idle_order(0, 1)
    order.hold("agent", [0, 1], RetentionHint(5.0, 1.0))
    order.idle(2)
    assert order.pop() == 2
    order.idle(3)
    order.advance(5.0)
    assert [order.pop() for _ in range(3)] == [0, 1, 3]
    assert order.counts.expired == 2


def test_held_pages_are_given_up_where_nothing_else_is_left() -> None:
    order = idle_order(0, 1, 2)
    order.hold("dear", [0], RetentionHint(9.0, 1.0))
    order.hold("cheap", [1, 2], RetentionHint(9.0, 0.1))
    assert [order.pop() for _ in range(3)] == [1, 2, 0]
    assert order.counts.displaced == 3


def test_a_tenant_cannot_hold_the_share_of_another() -> None:
    order = EvictionOrder[int](8, max_share=1.0)
    for page in range(8):
        order.idle(page)
    order.hold("own", [0, 1], RetentionHint(9.0, 0.1, "small"))
    for number in range(6):
        order.hold(f"pin{number}", [number + 2], RetentionHint(9.0, 9.0, "large", is_pinned=True))
    order.idle(8)
    order.hold("more", [8], RetentionHint(9.0, 9.0, "large", is_pinned=True))
    evicted = [order.pop() for _ in range(3)]
    assert not {0, 1} & set(evicted)


def test_a_request_that_goes_on_takes_over_what_was_held_for_it() -> None:
    order = idle_order(0, 1)
    order.hold("turn1", [0, 1], RetentionHint(9.0, 1.0))
    order.busy(0)
    order.idle(0)
    order.hold("turn2", [0], RetentionHint(9.0, 1.0, continues="turn1"))
    assert order.counts.num_held == 1
    assert [order.pop() for _ in range(2)] == [1, 0]
