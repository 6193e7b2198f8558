"""The model of what workers make of a load: known formulas, and what it must say of any load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.cluster.planner.model.queueing_model import (
    Demand,
    LatencyLevel,
    WorkerModel,
    batch_variance,
    erlang_c,
    outlook,
)
from slipstream.cluster.planner.pool_options import (
    PoolChange,
    PoolLimits,
    Pools,
    candidates,
    have_room,
    smaller,
    towards,
)
from slipstream.router.status.load_signals import WorkerSignals

WORKER = WorkerModel(
    decode=(0.010, 3e-4, 1e-8),
    prefill=(0.002, 1e-4, 0.0),
    gap=(1e-3, 1e-5),
    reserve_s=0.002,
    page_tokens=16,
    num_pages=20_000,
    max_slots=64,
    max_step_tokens=2048,
)


def demand(per_s: float, isl: int, osl: int, ttft_s: float = 0.5, itl_s: float = 0.03) -> Demand:
    points = tuple(isl * (0.55 + 0.1 * at) for at in range(10))
    return Demand(per_s, points, osl, (LatencyLevel(1.0, ttft_s, itl_s),))


def test_erlang_c_is_the_textbooks() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)  # of one server: its load
    assert erlang_c(2, 0.75) == pytest.approx(0.6429, abs=1e-4)
    assert erlang_c(10, 0.8) == pytest.approx(0.4092, abs=1e-4)


def test_a_batch_is_what_littles_law_gives() -> None:
    seen = outlook(4, 1, WORKER, WORKER, demand(4.0, 100, 200))
    step_s = 0.010 + (3e-4 + 1e-8 * 195) * seen.batch
    assert seen.batch == pytest.approx(4.0 * 199 * step_s, rel=0.05)
    assert seen.local_share == 0.0


def test_a_batch_varies_as_the_chain_of_arrivals_and_ends_does() -> None:
    """One more with each arrival, one less with each end, at the pace of the step that so many have."""
    per_s, steps, base_s, slope_s = 1.65, 400, 0.009, 0.001
    shares = [1.0]
    for num in range(1, 400):
        shares.append(shares[-1] * per_s * steps * (base_s + slope_s * num) / num)
    whole = sum(shares)
    mean = sum(num * share for num, share in enumerate(shares)) / whole
    variance = sum((num - mean) ** 2 * share for num, share in enumerate(shares)) / whole
    assert variance > 2.5 * mean  # far beyond Poisson
    assert batch_variance(mean, base_s / (1.0 - per_s * steps * slope_s), base_s) == pytest.approx(variance, rel=0.02)


def test_near_saturation_a_mean_within_the_level_leaves_many_late() -> None:
    """25 together on average take as long as the level allows 28."""
    near = outlook(4, 1, WORKER, WORKER, demand(7.28, 100, 200, itl_s=0.0184))
    far = outlook(4, 1, WORKER, WORKER, demand(4.0, 100, 200, itl_s=0.0184))
    assert near.itl_s < 0.0184
    assert near.attainment < 0.85
    assert far.attainment > 0.97


def test_pages_bound_the_batch() -> None:
    few_pages = replace(WORKER, num_pages=200)
    assert outlook(1, 1, WORKER, WORKER, demand(3.0, 1000, 400)).decode_load < 1.0
    assert outlook(1, 1, WORKER, few_pages, demand(3.0, 1000, 400)).decode_load > 1.0


def test_no_decode_worker_serves_nothing_and_no_load_needs_nothing() -> None:
    assert outlook(3, 0, WORKER, WORKER, demand(1.0, 100, 10)).attainment == 0.0
    assert outlook(0, 0, WORKER, WORKER, demand(0.0, 100, 10)).attainment == 1.0


def test_cached_prompts_are_cheaper() -> None:
    cold = demand(9.0, 3000, 20)
    warm = replace(cold, cached_share=0.8)
    assert outlook(2, 1, WORKER, WORKER, warm).attainment > outlook(2, 1, WORKER, WORKER, cold).attainment + 0.2


def test_a_line_that_the_configuration_draws_is_kept() -> None:
    load = demand(2.0, 3000, 20)
    assert outlook(2, 2, WORKER, WORKER, replace(load, local_max_tokens=100)).local_share == 0.0
    assert outlook(2, 2, WORKER, WORKER, replace(load, local_max_tokens=10_000)).local_share == 1.0
    assert outlook(2, 2, WORKER, WORKER, replace(load, local_max_tokens=3000)).local_share == 0.5


def test_bursts_make_waits_longer() -> None:
    even = demand(5.0, 3000, 20, ttft_s=0.6)
    bursty = replace(even, burstiness=5.0)
    assert outlook(2, 1, WORKER, WORKER, bursty).attainment < outlook(2, 1, WORKER, WORKER, even).attainment


def test_classes_with_other_levels_count_by_their_share() -> None:
    mixed = replace(demand(1.0, 3000, 20), levels=(LatencyLevel(0.75, 1.0, 0.1), LatencyLevel(0.25, 1e-6, 0.1)))
    assert outlook(1, 1, WORKER, WORKER, mixed).attainment == pytest.approx(0.75, abs=0.05)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.1, 60.0),
    st.integers(16, 6000),
    st.integers(2, 800),
    st.integers(0, 6),
    st.integers(1, 6),
)
def test_what_it_says_is_possible_and_more_load_is_never_better(
    per_s: float, isl: int, osl: int, num_prefill: int, num_decode: int
) -> None:
    load = demand(per_s, isl, osl)
    seen = outlook(num_prefill, num_decode, WORKER, WORKER, load)
    assert 0.0 <= seen.attainment <= 1.0
    assert 0.0 <= seen.goodput_per_s <= per_s + 1e-9
    more = outlook(num_prefill, num_decode, WORKER, WORKER, load.times(1.5))
    if seen.load < 0.9:
        # What is overloaded is predicted by another formula, of the part that could be served in time.
        assert more.attainment <= max(seen.attainment, seen.goodput_per_s / per_s) + 0.05
    bigger = outlook(num_prefill, num_decode + 1, WORKER, WORKER, load)
    assert bigger.goodput_per_s >= 0.8 * seen.goodput_per_s


def test_a_thousand_workers_are_searched_in_few_steps() -> None:
    limits = PoolLimits(0, 1000, 1, 1000, 1000)
    found = list(candidates(Pools(300, 500), limits))
    assert Pools(300, 500) in found
    assert len(found) < 600
    assert all(limits.allows(pools) for pools in found)


pools = st.builds(Pools, st.integers(0, 9), st.integers(1, 9))


@settings(max_examples=200, deadline=None)
@given(pools, pools, st.integers(1, 4))
def test_steps_lead_to_the_goal_and_are_no_larger_than_allowed(now: Pools, goal: Pools, step: int) -> None:
    at = now
    for _ in range(30):
        after = towards(at, goal, step)
        move = PoolChange.between(at, after)
        assert move.num_switched <= step
        assert move.num_removed <= step
        assert move.num_added <= max(at.total, 1)
        assert after.num_prefill >= 0
        assert after.num_decode >= 1
        at = after
    assert at == goal


def test_smaller_is_smaller() -> None:
    limits = PoolLimits(0, 8, 1, 8, 8)
    for now in (Pools(0, 1), Pools(1, 1), Pools(3, 4)):
        assert all(one.total < now.total and limits.allows(one) for one in smaller(now, 2, limits))


def test_what_runs_on_a_worker_needs_pages_and_slots_elsewhere() -> None:
    def worker(free_slots: int, free_pages: int, num_seqs: int) -> WorkerSignals:
        return WorkerSignals(
            *("d", "decode", False, 1, 16, 100, 8, 1000, 512, 4096),
            *(free_slots, free_pages, 100, num_seqs, num_seqs, 0, 0.0, 0, 0, 0.0),
        )

    leaving = [worker(4, 60, 4)]
    assert have_room([worker(2, 20, 6), worker(2, 20, 6)], leaving)
    assert not have_room([worker(3, 100, 5)], leaving)
    assert not have_room([worker(8, 39, 0)], leaving)
    assert have_room([], [worker(8, 100, 0)])


def test_fewer_sequences_have_room_where_they_take_pages_of_several_groups_or_for_a_state() -> None:
    plain = replace(WORKER, page_tokens=16, num_pages=1000, max_slots=1000)
    assert plain.max_batch(1600.0) == 10.0
    assert replace(plain, group_pages=(0, 0)).max_batch(1600.0) == 5.0
    assert replace(plain, group_pages=(0, 25)).max_batch(1600.0) == 8.0
    assert replace(plain, state_pages=100).max_batch(1600.0) == 5.0
