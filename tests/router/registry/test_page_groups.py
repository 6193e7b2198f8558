"""The router counts pages of workers whose layers have windows or states as these workers do themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.router.placement.policies.estimate import estimate_decode
from slipstream.router.protocol.messages import Credits
from slipstream.router.registry.capacity import can_ever_hold, decode_charge, fits_decode, prefill_charge, refusal
from slipstream.router.registry.credits import Charge
from slipstream.router.registry.worker_registry import WorkerState
from tests.support.router.greetings import make_hello
from tests.support.router.placed_workers import job, run_streams
from tests.support.router.placed_workers import worker as make_worker
from tests.support.workers.engine_driver import make_limits


def worker(group_pages: tuple[int, ...] = (), **fields: int) -> WorkerState:
    return WorkerState(make_hello(page_tokens=16, group_pages=group_pages, **fields), 0.0)


def test_a_group_with_a_window_takes_no_more_than_its_window() -> None:
    windowed = worker((0, 9))
    assert [windowed.pages_for(num_tokens) for num_tokens in (1, 16, 160, 16000)] == [2, 2, 19, 1009]
    assert decode_charge(windowed, 159, 0) == Charge(slots=1, pages=19)
    assert prefill_charge(windowed, 16000) == Charge(pages=1009, tokens=16000)
    assert worker(()).pages_for(16000) == 1000


def test_a_state_takes_its_pages_beside_those_of_the_tokens() -> None:
    stateful = worker(state_pages=6)
    assert [stateful.pages_for(num_tokens) for num_tokens in (1, 16, 160)] == [7, 7, 16]
    assert decode_charge(stateful, 159, 0) == Charge(slots=1, pages=16)
    assert prefill_charge(stateful, 160) == Charge(pages=16, tokens=160)


def test_a_long_prompt_has_all_pages_of_an_idle_worker_whose_states_are_large() -> None:
    """States of as many sequences as there are slots would leave no page for tokens."""
    stateful = worker(state_pages=20, num_pages=120, max_model_len=1600, max_slots=8)
    stateful.ledger.report(Credits(0, 8, 120, 10_000))
    assert can_ever_hold(stateful, 1599)
    assert fits_decode(stateful, 1599, 0)
    assert refusal(1600, [stateful]) == "a sequence of 1600 tokens leaves no room for output: at most 1600 tokens fit"


def test_a_worker_is_not_smaller_than_it_is() -> None:
    windowed = worker((9,), num_pages=20, max_model_len=10_000)
    assert can_ever_hold(windowed, 9_000)
    assert (
        refusal(10_000, [windowed]) == "a sequence of 10000 tokens leaves no room for output: at most 10000 tokens fit"
    )
    windowed.ledger.report(Credits(0, 1, 9, 100))
    assert fits_decode(windowed, 9_000, 0)
    windowed.ledger.report(Credits(0, 1, 8, 100))
    assert not fits_decode(windowed, 9_000, 0)


def test_what_sequences_will_take_is_counted_in_pages_of_all_groups_that_still_grow() -> None:
    """A worker whose blocks take a page in each of two groups, with twice the pages: it is as full as a plain one."""
    plain, grouped = make_worker("decode", "d", pages=200), make_worker("decode", "d", pages=400)
    grouped.hello = replace(grouped.hello, group_pages=(0, 0))
    for state, free_pages in ((plain, 50), (grouped, 100)):
        run_streams(state, 4, remaining=2000.0)
        state.ledger.report(Credits(0, 60, free_pages, 1000))
    overflow_s = estimate_decode(plain, job(100, 2000), 0.0).overflow_s
    assert overflow_s > 0.0
    assert estimate_decode(grouped, job(100, 2000), 0.0).overflow_s == pytest.approx(overflow_s)
    assert worker((0, 9)).pages_a_block(100) == (2, 2.0), "the window is not full yet"
    assert worker((0, 9)).pages_a_block(16 * 90) == (1, 1.1)


@given(
    st.lists(st.integers(1, 300), max_size=3),
    st.integers(0, 2),
    st.integers(1, 100),
    st.booleans(),
    st.booleans(),
    st.integers(1, 2000),
    st.integers(0, 9),
)
def test_router_and_worker_count_alike(
    windows: list[int],
    num_full: int,
    max_step_tokens: int,
    holds: bool,
    reserves: bool,
    num_tokens: int,
    state_pages: int,
) -> None:
    groups = (*[None] * (num_full or not windows), *sorted(windows, reverse=True))
    limits = make_limits(num_pages=10**6, page_tokens=16, max_step_tokens=max_step_tokens, windows=groups)
    limits = replace(limits, holds_prompts=holds, reserves_output=reserves, state_pages=state_pages)
    counted = worker(tuple(most or 0 for most in limits.most_blocks), state_pages=state_pages)
    assert counted.pages_for(num_tokens) == limits.pages_for(num_tokens)
