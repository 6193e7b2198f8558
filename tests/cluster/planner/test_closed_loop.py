"""The planner steers a cluster: it regains the levels within a stated time, changes little, and never takes away what
is needed. All in virtual time (`plant`).

Of each kind of load two bounds are held, over several seeds: how many changes it gets out of the planner at most
(`changes_little`), and for how long at a stretch the levels may be lost (`regains`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.planner.change_history import LEAST_STUCK_S, STUCK
from slipstream.cluster.planner.planner_decision import AddWorkers, PlannerDecision
from slipstream.cluster.planner.slo_planner import SloPlanner
from tests.support.cluster.simulated_plant import Load, Plant, Times

HORIZON_S, SETTLE_S, START_S, SWITCH_S = 90.0, 10.0, 40.0, 4.0
TARGET = 0.9
# After a load has changed: seen (the short window, and a second look), the change, its settling, and again if one step
# was not enough.
REGAIN_SWITCH_S, REGAIN_START_S = 90.0, 180.0
WINDOW_S = 60.0  # over which the levels are looked at: what is lost shows for so long at least
LONG_PROMPTS, LONG_ANSWERS = Load(8.0, 3000, 40), Load(8.0, 200, 700)


def steered(
    load: Callable[[float, Plant], Load],
    *,
    num_prefill: int = 2,
    num_decode: int = 2,
    max_workers: int | None = None,
    seed: int = 1,
    scale_to_zero: bool = False,
    reported_times: Times | None = None,
    starts_fail: bool = False,
    refuses: bool = False,
    pending_s: float = 0.0,
) -> Plant:
    config = PlannerConfig(
        horizon_s=HORIZON_S,
        settle_s=SETTLE_S,
        start_s=START_S,
        switch_s=SWITCH_S,
        target_attainment=TARGET,
        max_workers=max_workers,
        scale_to_zero=scale_to_zero,
        idle_s=60.0,
    )
    return Plant(
        SloPlanner(config),
        load,
        num_prefill=num_prefill,
        num_decode=num_decode,
        seed=seed,
        start_s=START_S,
        switch_s=SWITCH_S,
        reported_times=reported_times,
        starts_fail=starts_fail,
        refuses=refuses,
        pending_s=pending_s,
    )


# Of a load that turns around whenever it likes for 1,200 s: one way or the other four times at the most until the waits
# have grown to the horizon, then once a horizon.
FLIPPED = 8 + int(1200.0 / HORIZON_S)


def changes_little(plant: Plant, most: int) -> None:
    changes = [f"{one.at_s:.0f} s: {one.why}" for one in plant.changes]
    assert len(plant.changes) <= most, f"{len(plant.changes)} changes: {changes}"


def longest_lost_s(plant: Plant, from_s: float, to_s: float) -> float:
    """The longest time covered by windows of `WINDOW_S`, each 5 s behind the one before, in all of which too few of the
    requests that came kept both levels."""
    longest_s, lost_from_s, at_s = 0.0, math.inf, from_s
    while at_s + WINDOW_S <= to_s:
        if plant.attainment(at_s, at_s + WINDOW_S) >= TARGET:
            lost_from_s = math.inf
        else:
            lost_from_s = min(lost_from_s, at_s)
            longest_s = max(longest_s, at_s + WINDOW_S - lost_from_s)
        at_s += 5.0
    return longest_s


def regains(plant: Plant, within_s: float, from_s: float, to_s: float) -> None:
    lost_s = longest_lost_s(plant, from_s, to_s)
    changes = [f"{one.at_s:.0f} s: {one.why}" for one in plant.changes]
    assert lost_s <= within_s, f"the levels were lost for {lost_s:.0f} s: {changes}"


def holds_from(plant: Plant, from_s: float, to_s: float, windows_s: float = 60.0) -> None:
    at_s = from_s
    while at_s + windows_s <= to_s:
        attained = plant.attainment(at_s, at_s + windows_s)
        assert attained >= TARGET, f"{attained:.2f} from {at_s:.0f} s: {[d.why for d in plant.changes]}"
        at_s += windows_s


@pytest.mark.parametrize("seed", range(3))
def test_a_constant_load_shrinks_the_cluster_to_what_it_needs_and_no_further(seed: int) -> None:
    plant = steered(lambda now, _: Load(6.0, 1000, 150), seed=seed)
    plant.run(700.0)
    changes_little(plant, 3)
    regains(plant, 0.0, 0.0, 660.0)
    assert plant.state().num_prefill + plant.state().num_decode < 4
    assert not [one for one in plant.changes if one.at_s > 400.0]
    holds_from(plant, 0.0, 660.0)
    assert plant.num_lost == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_step_to_seven_times_the_load_is_met_by_more_workers(seed: int) -> None:
    """It comes when there is one worker: two starts of 40 s, each seen and settled, and the queue of all that time."""
    plant = steered(
        lambda now, _: Load(2.0 if now < 100 else 14.0, 1500, 150),
        num_prefill=1,
        num_decode=1,
        max_workers=8,
        seed=seed,
    )
    plant.run(700.0)
    changes_little(plant, 6)
    regains(plant, 225.0, 0.0, 660.0)
    holds_from(plant, 100.0 + REGAIN_START_S, 660.0)
    assert plant.num_lost == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_ramp_is_met_while_it_goes_on(seed: int) -> None:
    plant = steered(
        lambda now, _: Load(1.0 + 0.02 * now, 1500, 150), num_prefill=1, num_decode=1, max_workers=10, seed=seed
    )
    plant.run(700.0)
    changes_little(plant, 5)
    regains(plant, 120.0, 0.0, 660.0)
    assert plant.attainment(0.0, 660.0) >= TARGET
    assert plant.num_lost == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_load_that_shifts_from_prompts_to_answers_is_met_by_other_roles_alone(seed: int) -> None:
    plant = steered(lambda now, _: LONG_PROMPTS if now < 200 else LONG_ANSWERS, num_prefill=3, num_decode=1, seed=seed)
    plant.run(600.0)
    switched = [one for one in plant.changes if 200.0 < one.at_s < 200.0 + REGAIN_SWITCH_S]
    assert switched
    assert not any(map(adds, plant.changes))
    changes_little(plant, 4)
    regains(plant, 130.0, 0.0, 560.0)
    assert plant.state().num_decode > 1
    holds_from(plant, 200.0 + REGAIN_SWITCH_S, 560.0)
    assert plant.num_lost == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_passes_and_the_cluster_comes_to_rest(seed: int) -> None:
    plant = steered(lambda now, _: Load(16.0 if 150 < now < 180 else 3.0, 1500, 150), max_workers=8, seed=seed)
    plant.run(1000.0)
    changes_little(plant, 8)
    regains(plant, 150.0, 0.0, 950.0)  # of which the burst itself takes 30
    assert plant.attainment(180.0 + REGAIN_START_S, 950.0) >= TARGET
    assert len([one for one in plant.changes if one.at_s > 700.0]) <= 2
    assert plant.num_lost == 0


@pytest.mark.parametrize("seed", range(2))
def test_days_and_nights_are_followed_once_up_and_once_down(seed: int) -> None:
    day_s, num_days = 900.0, 3
    plant = steered(
        lambda now, _: Load(6.0 + 5.0 * math.sin(2 * math.pi * now / day_s), 1500, 150), max_workers=8, seed=seed
    )
    plant.run(day_s * num_days)
    directions = [
        sign
        for (_, p0, d0), (_, p1, d1) in pairwise(plant.sizes)
        if (sign := (p1 + d1 > p0 + d0) - (p1 + d1 < p0 + d0))
    ]
    turns = sum(one != other for one, other in pairwise(directions))
    assert turns <= 2 * num_days + 2  # not more often than the load itself, but for one dip
    changes_little(plant, 6 * num_days)
    regains(plant, 150.0, 0.0, day_s * num_days - 30.0)
    assert plant.attainment(0.0, day_s * num_days - 30.0) >= TARGET
    assert plant.num_lost == 0


@pytest.mark.parametrize("period_s", [SETTLE_S + SWITCH_S, 2 * SETTLE_S, 30.0, 60.0])
def test_a_load_that_flips_in_step_with_the_planner_gets_few_changes_out_of_it(period_s: float) -> None:
    plant = steered(lambda now, _: LONG_PROMPTS if now < 1200.0 and int(now / period_s) % 2 else LONG_ANSWERS)
    plant.run(1600.0)
    changes_little(plant, FLIPPED)
    holds_from(plant, 1200.0 + REGAIN_SWITCH_S, 1560.0)  # once it leaves off
    assert plant.num_lost == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_load_that_always_wants_the_other_split_gets_few_changes_out_of_it(seed: int) -> None:
    def spiteful(now: float, plant: Plant) -> Load:
        if now > 1200.0:
            return LONG_ANSWERS
        prefill, decode = len(plant.of_role("prefill", ready=True)), len(plant.of_role("decode", ready=True))
        return LONG_PROMPTS if prefill <= decode else LONG_ANSWERS

    plant = steered(spiteful, seed=seed)
    plant.run(1600.0)
    changes_little(plant, FLIPPED)
    holds_from(plant, 1200.0 + REGAIN_SWITCH_S, 1560.0)
    assert plant.num_lost == 0


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_service_times_that_are_wrong_by_a_factor_of_two_are_found_out(factor: float) -> None:
    plant = steered(
        lambda now, _: Load(2.0 if now < 100 else 9.0, 1500, 150),
        num_prefill=1,
        num_decode=1,
        max_workers=8,
        reported_times=Times().slower(factor),
    )
    plant.run(900.0)
    assert len(plant.changes) <= 10
    holds_from(plant, 100.0 + 2 * REGAIN_START_S, 860.0)
    assert plant.num_lost == 0


def test_workers_that_fail_to_start_are_tried_ever_more_rarely_and_roles_still_switch() -> None:
    plant = steered(lambda now, _: Load(2.0 if now < 100 else 30.0, 1500, 150), max_workers=8, starts_fail=True, seed=3)
    plant.run(1500.0)
    tries = [one.at_s for one in plant.changes if adds(one)]
    assert 2 <= len(tries) <= 6
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps[-1] > gaps[0]
    assert plant.num_lost == 0


@pytest.mark.parametrize("seed", range(2))
def test_workers_that_wait_for_a_machine_are_capacity_to_come_until_a_start_should_have_ended(seed: int) -> None:
    load = Load(14.0, 1500, 150)
    some, never = (
        steered(lambda now, _: load, num_prefill=1, num_decode=1, max_workers=20, seed=seed, pending_s=pending_s)
        for pending_s in (60.0, math.inf)
    )
    for plant in (some, never):
        plant.run(700.0)
    asked, in_vain = ([one.at_s for one in plant.changes if adds(one)] for plant in (some, never))
    assert all(later - earlier >= 60.0 + START_S for earlier, later in pairwise(asked))
    assert some.attainment(400.0, 660.0) >= TARGET
    gaps = [later - earlier for earlier, later in pairwise(in_vain)]
    assert gaps
    assert min(gaps) >= max(STUCK * START_S, LEAST_STUCK_S)
    assert gaps == sorted(gaps)


def adds(decision: PlannerDecision) -> bool:
    return any(isinstance(action, AddWorkers) for action in decision.actions)


def test_a_cluster_that_refuses_to_change_is_asked_ever_more_rarely() -> None:
    plant = steered(lambda now, _: LONG_ANSWERS, num_prefill=3, num_decode=1, refuses=True)
    plant.run(900.0)
    asked = [one.at_s for one in plant.changes]
    assert 3 <= len(asked) <= 8
    assert asked[-1] - asked[-2] > 3 * (asked[1] - asked[0])


def test_an_idle_cluster_goes_to_zero_and_comes_back_when_something_waits() -> None:
    plant = steered(lambda now, _: Load(0.0 if 60 < now < 400 else 3.0, 500, 50), scale_to_zero=True, seed=2)
    plant.run(300.0)
    assert (plant.state().num_prefill, plant.state().num_decode) == (0, 0)
    plant.run(600.0)
    woke = [one for one in plant.changes if one.reason == "wakes"]
    assert len(woke) == 1
    assert woke[0].at_s <= 400.0 + 2 * plant.interval_s + 1.0
    holds_from(plant, 400.0 + REGAIN_START_S, 580.0)
    assert plant.num_lost == 0


loads = st.lists(
    st.tuples(st.floats(0.0, 20.0), st.sampled_from([200, 1500, 4000]), st.sampled_from([20, 150, 600])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(loads, st.integers(0, 3), st.integers(1, 3), st.integers(0, 1000), st.booleans())
def test_whatever_comes_limits_are_kept_and_nothing_that_runs_is_lost(
    parts: list[tuple[float, int, int]], num_prefill: int, num_decode: int, seed: int, starts_fail: bool
) -> None:
    pieces = [Load(*part) for part in parts]
    plant = steered(
        lambda now, _: pieces[min(int(now / 80.0), len(pieces) - 1)],
        num_prefill=num_prefill,
        num_decode=num_decode,
        max_workers=6,
        seed=seed,
        starts_fail=starts_fail,
    )
    plant.run(80.0 * len(pieces))
    assert all(decode >= 1 and prefill + decode <= 6 for _, prefill, decode in plant.sizes)
    assert len(plant.changes) <= 2 + plant.now / SETTLE_S / 2
    assert all(one.actions or one.reason for one in plant.decisions)
    assert plant.num_lost == 0
