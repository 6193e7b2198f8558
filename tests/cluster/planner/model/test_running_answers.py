"""What the answers that run tell: how long answers are at least, and how many of them are late, before any has ended;
and what the planner makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetMember, FleetState
from slipstream.cluster.planner.model.queueing_model import WorkerModel
from slipstream.cluster.planner.model.running_answers import running_of
from slipstream.cluster.planner.planner_decision import PlannerDecision, SwitchRole
from slipstream.cluster.planner.slo_planner import SloPlanner
from slipstream.router.protocol.messages import Role
from slipstream.router.status.load_signals import ClassSignals, RoleTimes, Signals, Spread, WindowSignals, WorkerSignals

TTFT_SLO_S, ITL_SLO_S = 2.4, 0.030
DECODE_TIMES = (0.010, 0.001, 0.0)  # 20 answers at once are just in time
WORKER = WorkerModel(DECODE_TIMES, (0.0, 6e-4, 0.0), (0.0, 0.0), 0.0, 16, 4000, 64, 256)
POINTS = tuple(100.0 * (0.75 + 0.05 * at) for at in range(10))


def worker(name: str, role: Role, num_running: int, prefill_share: float = 0.0) -> WorkerSignals:
    return WorkerSignals(
        *(name, role, False, 1, 16, 4000, 64, 8192, 256, 4096),
        *(64 - num_running, 4000, 8192, num_running, num_running, 200 * num_running, 0.0, 0, 0, prefill_share),
    )


def window(span_s: float, per_s: float, osl: float) -> WindowSignals:
    """Everything that has ended was in time."""
    num = round(per_s * span_s)
    return WindowSignals(
        span_s,
        num_arrivals=num,
        isl=Spread(num, 100.0, 0.02, 100.0, 115.0, 120.0, POINTS),
        osl=Spread(num, osl, 0.02, osl, osl, osl),
        expected_osl=osl,
        num_prompt_tokens=100 * num,
        num_remote=num,
        ttft_s=Spread(num, 0.1, 0.1, 0.1, 0.2, 0.2),
        itl_s=Spread(num, 0.015, 0.1, 0.015, 0.02, 0.02),
        classes=(ClassSignals(0, num, TTFT_SLO_S, ITL_SLO_S, num, num, num, num, num),),
    )


def signals(at_s: float, workers: tuple[WorkerSignals, ...], osl: float = 30.0, per_s: float = 3.3) -> Signals:
    times = tuple(
        RoleTimes(role, DECODE_TIMES, WORKER.prefill, (0.0, 0.0), (0.0, 0.0), 0.0, 100, 100)
        for role in ("prefill", "decode")
    )
    short = window(10.0, per_s, osl)
    return Signals(
        *(at_s, "r", TTFT_SLO_S, ITL_SLO_S, 0, sum(one.num_running for one in workers), 0.0),
        *(short, window(300.0, per_s, osl), workers, times, None, window(3.0, per_s, osl)),
    )


def fleet(workers: tuple[WorkerSignals, ...]) -> FleetState:
    members = tuple(FleetMember(one.name, one.role, "ready", 0.0) for one in workers)
    roles = [one.role for one in workers]
    return FleetState(members, roles.count("prefill"), roles.count("decode"), None, False)


def of(num_prefill: int, *num_running: int) -> tuple[WorkerSignals, ...]:
    prefill = tuple(worker(f"p{at}", "prefill", 0) for at in range(num_prefill))
    return (*prefill, *(worker(f"d{at}", "decode", num) for at, num in enumerate(num_running)))


def decided(planner: SloPlanner, at_s: float, workers: tuple[WorkerSignals, ...]) -> PlannerDecision:
    return planner.decide(signals(at_s, workers), fleet(workers), at_s)


def planner(num_prefill: int = 3) -> SloPlanner:
    """It has looked at a cluster with one decode worker, so what it sees now is not new to it."""
    made = SloPlanner(PlannerConfig(interval_s=2.0, settle_s=4.0, horizon_s=60.0, max_workers=num_prefill + 1))
    decided(made, 90.0, of(num_prefill, 4))
    return made


def test_tokens_a_second_over_requests_a_second_are_the_length_of_answers() -> None:
    """400 streams of 400 tokens at 10 workers: 40 on each, a token every 50 ms, so 20 requests a second."""
    running = running_of(signals(0.0, of(0, *[40] * 10)), WORKER, 100.0)
    assert running.num == 400
    assert 0.95 * 400 < running.osl(20.0) <= 400
    assert running.osl(40.0) == pytest.approx(0.5 * running.osl(20.0))


def test_few_answers_that_run_say_little_and_none_nothing() -> None:
    empty = running_of(signals(0.0, of(3, 0)), WORKER, 100.0)
    assert (empty.num, empty.in_time, empty.osl(3.0)) == (0, 1.0, 0.0)
    assert running_of(signals(0.0, of(3, 1)), WORKER, 100.0).osl(3.0) == 0.0
    steps_without_a_base = replace(WORKER, decode=(0.0, 0.001, 0.0))
    assert running_of(signals(0.0, of(3, 1)), steps_without_a_base, 100.0).osl(3.0) == 0.0


def test_an_answer_is_late_where_too_many_run_or_prompts_take_the_time() -> None:
    assert running_of(signals(0.0, of(0, 19, 21)), WORKER, 100.0).in_time == pytest.approx(19 / 40)
    busy = (worker("d", "decode", 10, prefill_share=0.6),)
    assert running_of(signals(0.0, busy), WORKER, 100.0).in_time == 0.0
    assert running_of(signals(0.0, of(0, 10)), WORKER, 100.0).in_time == 1.0


def test_roles_switch_before_the_first_late_answer_has_ended() -> None:
    """Everything that has ended so far was short and in time; forty answers share one decode worker."""
    made = planner()
    assert not decided(made, 100.0, of(3, 4)).actions
    decision = decided(made, 102.0, of(3, 40))
    assert {one.role for one in decision.actions if isinstance(one, SwitchRole)} == {"decode"}
    assert len(decision.actions) == 2  # half of the workers at once, as hardly anything is in time


def test_the_rest_of_an_urgent_way_is_gone_without_settling_in_between() -> None:
    made = planner(num_prefill=6)
    first = decided(made, 102.0, of(6, 60))
    assert len(first.actions) == 2
    assert "of which 4P3D is the way" in first.why
    on = decided(made, 104.0, of(4, 50, 5, 5))
    assert on.actions
    assert all(isinstance(one, SwitchRole) and one.role == "decode" for one in on.actions)


def test_pools_that_would_keep_few_requests_either_are_for_answers_that_are_late_at_two_looks() -> None:
    """Forty requests a second of 100 tokens: four workers cannot bear it, in whatever roles."""
    made = planner()
    workers = of(3, 40)
    first, second = (made.decide(signals(at_s, workers, 100.0, 40.0), fleet(workers), at_s) for at_s in (100.0, 102.0))
    assert (first.reason, first.actions) == ("best_there_is", ())
    assert any("late only since this look" in one.rejected for one in first.alternatives)
    assert second.reason == "goodput"
    assert {one.role for one in second.actions if isinstance(one, SwitchRole)} == {"decode"}


def test_answers_that_are_in_time_change_nothing() -> None:
    made = planner()
    for at in range(10):
        assert not decided(made, 100.0 + 2.0 * at, of(3, 5)).actions


def test_few_late_answers_are_chance() -> None:
    made = planner()
    slow = tuple(replace(one, prefill_share=0.7) if one.role == "decode" else one for one in of(3, 5))
    assert running_of(signals(0.0, slow), WORKER, 100.0).in_time == 0.0
    assert not decided(made, 100.0, slow).actions
