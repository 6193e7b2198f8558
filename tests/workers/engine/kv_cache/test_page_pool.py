"""Page pool and page states under any order of operations."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slipstream.router.protocol.block_hash import HashChain, root_digest
from slipstream.workers.engine.kv_cache.page_pool import PagePool
from slipstream.workers.engine.kv_cache.page_states import OWNERS, PageState, PageStates

PAGE_TOKENS = 2
ROOT = root_digest("m", "")


class PagePoolMachine(RuleBasedStateMachine):
    """Holders take pages for short token sequences over a tiny alphabet, so that prefixes often coincide."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: list[tuple[array[int], PageState, array[int], HashChain]] = []
        self.content: dict[int, bytes] = {}  # page -> its whole prefix, as last written

    @initialize(num_pages=st.integers(1, 12))
    def build(self, num_pages: int) -> None:
        self.pool = PagePool(num_pages)

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=PAGE_TOKENS, max_size=10),
        owner=st.sampled_from(OWNERS),
        spare=st.integers(0, 3),
    )
    def acquire(self, tokens: list[int], owner: PageState, spare: int) -> None:
        ids, chain = array("i", tokens), HashChain(ROOT, PAGE_TOKENS)
        num_pages = len(tokens) // PAGE_TOKENS
        shared = self.pool.cache.match(chain, ids, num_pages)
        for at, page in enumerate(shared):
            assert self.content[page] == ids[: (at + 1) * PAGE_TOKENS].tobytes(), "a hit on another prefix"
        before = self.pool.num_available
        pages = self.pool.acquire(shared, num_pages - len(shared), owner, spare)
        if pages is None:
            assert self.pool.num_available == before
            assert before < num_pages + spare
            return
        assert self.pool.num_available >= spare
        for at in range(len(shared), num_pages):
            self.content[pages[at]] = ids[: (at + 1) * PAGE_TOKENS].tobytes()
        self.holders.append((pages, owner, ids, chain))
        if sum(tokens) % 3:  # some are computed to the end and remembered, others not
            self.pool.remember(pages, chain, ids, len(shared), num_pages)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        pages, owner, _, _ = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.pool.release(pages, owner)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), to=st.sampled_from(OWNERS))
    def hand_over(self, data: st.DataObject, to: PageState) -> None:
        at = data.draw(st.integers(0, len(self.holders) - 1))
        pages, owner, ids, chain = self.holders[at]
        self.pool.hand_over(pages, owner, to)
        self.holders[at] = pages, to, ids, chain

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        pages, _, tokens, chain = self.holders[data.draw(st.integers(0, len(self.holders) - 1))]
        self.pool.forget(pages)
        assert not set(self.pool.cache.match(chain, tokens, len(tokens) // PAGE_TOKENS)) & set(pages)

    @rule(limit=st.integers(0, 14))
    def set_limit(self, limit: int) -> None:
        self.pool.set_limit(limit)
        assert self.pool.limit == min(limit, self.pool.num_pages)

    @rule(max_pages=st.integers(1, 12))
    def return_memory(self, max_pages: int) -> None:
        held = self.pool.num_held
        returned = self.pool.take_returnable(max_pages)
        owned = {page for pages, _, _, _ in self.holders for page in pages}
        assert not owned & set(returned)
        assert returned == sorted(set(returned))
        assert self.pool.num_held == held - len(returned)
        for page in returned:
            self.content.pop(page, None)  # what was there is gone, and a later hit on it would be noticed

    @invariant()
    def no_more_is_kept_than_the_limit_allows(self) -> None:
        owned = {page for pages, _, _, _ in self.holders for page in pages}
        assert self.pool.num_used == len(owned)
        kept = len(owned) + self.pool.num_available
        assert kept == max(self.pool.limit, len(owned))
        assert self.pool.num_held >= kept
        assert self.pool.num_held == kept or self.pool.has_returnable

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity([(pages, owner) for pages, owner, _, _ in self.holders])
        counts = self.pool.counts()
        assert sum(counts.values()) == self.pool.num_pages
        assert self.pool.num_available == counts["free"] + counts["cached"]

    def teardown(self) -> None:
        for pages, owner, _, _ in self.holders:
            self.pool.release(pages, owner)
        assert self.pool.num_available == self.pool.limit
        self.pool.set_limit(self.pool.num_pages)
        assert self.pool.num_available == self.pool.num_pages


PagePoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPagePool = PagePoolMachine.TestCase


def test_strongest_owner_names_the_state_of_a_shared_page() -> None:
    states = PageStates(1)
    for owner in reversed(OWNERS):
        states.own(0, owner)
        assert states.state(0) is owner
    for owner in OWNERS:
        assert states.state(0) is owner
        states.disown(0, owner)
    assert states.counts() == {"active": 0, "reserved": 0, "held": 0, "draining": 0, "cached": 0, "free": 1}


def test_giving_back_what_one_does_not_own_is_noticed() -> None:
    pool = PagePool(2)
    pages = pool.acquire((), 1, PageState.ACTIVE)
    assert pages is not None
    with pytest.raises(AssertionError, match="no held owner"):
        pool.release(pages, PageState.HELD)


def test_beginning_of_a_prefix_outlives_its_end() -> None:
    pool, tokens, chain = PagePool(3), array("i", range(6)), HashChain(ROOT, PAGE_TOKENS)
    pages = pool.acquire((), 3, PageState.ACTIVE)
    assert pages is not None
    pool.remember(pages, chain, tokens, 0, 3)
    pool.release(pages, PageState.ACTIVE)
    taken = pool.acquire((), 1, PageState.ACTIVE)
    assert taken == pages[2:]
    assert pool.cache.match(HashChain(ROOT, PAGE_TOKENS), tokens, 3) == list(pages[:2])


def test_match_that_is_taken_up_again_is_not_evicted_for_its_own_new_pages() -> None:
    pool, tokens, chain = PagePool(3), array("i", range(4)), HashChain(ROOT, PAGE_TOKENS)
    pages = pool.acquire((), 2, PageState.ACTIVE)
    assert pages is not None
    pool.remember(pages, chain, tokens, 0, 2)
    pool.release(pages, PageState.ACTIVE)
    assert pool.acquire(pages, 2, PageState.ACTIVE) is None
    again = pool.acquire(pages, 1, PageState.ACTIVE)
    assert again is not None
    assert len(set(again)) == 3


def test_shrinking_takes_free_pages_then_cached_ones_and_then_waits_for_those_in_use() -> None:
    pool, tokens, chain = PagePool(6), array("i", range(4)), HashChain(ROOT, PAGE_TOKENS)
    used = pool.acquire((), 2, PageState.ACTIVE)
    cached = pool.acquire((), 2, PageState.ACTIVE)
    assert used is not None
    assert cached is not None
    pool.remember(cached, chain, tokens, 0, 2)
    pool.release(cached, PageState.ACTIVE)
    pool.cache.changes.take()
    pool.set_limit(4)
    assert pool.counts() | {"withheld": 2, "free": 0, "cached": 2, "active": 2} == pool.counts()
    pool.set_limit(3)
    assert pool.cache.match(HashChain(ROOT, PAGE_TOKENS), tokens, 2) == list(cached[:1])
    pool.set_limit(1)
    assert pool.num_available == 0
    assert pool.acquire((), 1, PageState.ACTIVE) is None
    stored, removed = pool.cache.changes.take()
    assert (len(stored), len(removed)) == (0, 2)
    assert pool.num_held == 6
    assert pool.take_returnable(9) == [page for page in range(6) if page not in used]
    assert pool.num_held == 2
    pool.release(used, PageState.ACTIVE)
    assert pool.num_available == 1
    assert pool.take_returnable(9) == list(used[1:])
    pool.set_limit(6)
    assert pool.num_available == 6


def test_pages_that_still_have_their_memory_are_allowed_again_first() -> None:
    pool = PagePool(4)
    pool.set_limit(1)
    assert pool.take_returnable(2) == [1, 2]
    pool.set_limit(2)
    assert not pool.has_returnable
    pages = pool.acquire((), 2, PageState.ACTIVE)
    assert pages is not None
    assert sorted(pages) == [0, 3]
