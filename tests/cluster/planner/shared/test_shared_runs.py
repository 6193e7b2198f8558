"""The planner of several models over simulated workers, with a production dispatcher for each model."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.planner.change_history import LEAST_STUCK_S
from slipstream.cluster.planner.planner_decision import AddWorkers, MoveWorker
from slipstream.cluster.planner.shared.shared_loading import load_shared_planner
from slipstream.cluster.tools.sim.run_result import RunResult
from slipstream.cluster.tools.sim.sim_config import SimConfig
from slipstream.cluster.tools.sim.sim_model import SimModelConfig
from slipstream.cluster.tools.sim.sim_run import ModelsRun, open_models
from slipstream.router.config.router_config import SloConfig

CODE_SLO = SloConfig(1500.0, 30.0)
CONFIG = SimConfig(
    slo=SloConfig(500.0, 12.0),
    planner=PlannerConfig(enabled=True),
    budget=BudgetConfig(workers=4),
    seconds=150.0,
    models=(
        SimModelConfig("chat", "isl=500,osl=500,rate=2,burst=1", split="2"),
        SimModelConfig("code", "isl=8000,osl=50,rate=1.5,burst=3,every=50,turn=2/3", split="2", slo=CODE_SLO),
    ),
)


def run(config: SimConfig) -> dict[str, RunResult]:
    models = open_models(config)
    results = ModelsRun(config, models, 150.0).run("slo", config.divisions()[0])
    return {result.model: result for result in results}


def moves(results: dict[str, RunResult]) -> list[MoveWorker]:
    made = [decision for result in results.values() for decision in result.decisions]
    return [action for decision in made for action in decision.actions if isinstance(action, MoveWorker)]


def test_a_burst_of_one_model_is_met_by_workers_of_another_within_the_budget() -> None:
    planned, fixed = run(CONFIG), run(replace(CONFIG, planner=PlannerConfig()))
    assert [move.model for move in moves(planned)][:1] == ["code"]
    assert planned["code"].attainment > fixed["code"].attainment + 0.1
    assert planned["chat"].attainment > 0.9
    for samples in zip(*(result.samples for result in planned.values()), strict=True):
        assert sum(sample.num_prefill + sample.num_decode for sample in samples) <= 4
    assert sum(result.num_failed for result in planned.values()) == 0
    taken = next(one for one in planned["code"].decisions if one.transfers)
    assert "chat gives" in taken.why
    assert "with 1 less" in taken.why
    assert any(one.reason == "gives" for one in planned["chat"].decisions)


def test_a_model_without_workers_gets_one_of_another_when_its_first_request_waits() -> None:
    chat, code = CONFIG.models
    sleeping = replace(code, workload="isl=500,osl=20,rate=0.5,burst=1", split="0", min_workers=0)
    results = run(replace(CONFIG, models=(replace(chat, split="4"), sleeping), seconds=40.0))
    (move,) = moves(results)
    woken = results["code"].decisions[0]
    assert (move.model, woken.reason) == ("code", "wakes")
    assert results["code"].outcomes.ends == {"stop": len(results["code"].outcomes)}


def test_a_request_of_a_model_without_workers_takes_the_only_worker_of_one_that_rests() -> None:
    """Long before that would count as idle, and back again for the next request there."""
    chat, code = CONFIG.models
    chat = replace(chat, workload="isl=500,osl=20,rate=0.05,burst=1", split="1", min_workers=0)
    code = replace(code, workload="isl=500,osl=20,rate=0.05,burst=1", split="0", min_workers=0)
    results = run(replace(CONFIG, budget=BudgetConfig(workers=1), models=(chat, code), seconds=150.0))
    assert {move.model for move in moves(results)} == {"chat", "code"}
    for result in results.values():
        assert set(result.outcomes.ends) == {"stop"}
        assert len(result.outcomes) > 1


def test_a_model_without_workers_gets_a_new_one_where_the_budget_has_room() -> None:
    chat, code = CONFIG.models
    busy = replace(chat, workload="isl=500,osl=500,rate=6,burst=1", split="1")
    sleeping = replace(code, workload="isl=500,osl=20,rate=0.5,burst=1", split="0", min_workers=0)
    results = run(replace(CONFIG, models=(busy, sleeping), seconds=30.0))
    woken = results["code"].decisions[0]
    assert (woken.reason, woken.actions) == ("wakes", (AddWorkers("decode", 1),))
    assert results["code"].num_failed == 0


@pytest.mark.parametrize("start_s", [5.0, 60.0])
def test_a_worker_that_has_just_come_is_seen_at_work_before_another_is_asked_for(start_s: float) -> None:
    chat, code = CONFIG.models
    busy = replace(chat, workload="isl=500,osl=500,rate=14,burst=1", split="1")
    other = replace(code, workload="isl=500,osl=100,rate=0.5,burst=1", split="1")
    config = replace(CONFIG, budget=BudgetConfig(workers=20), models=(busy, other), seconds=200.0)
    models = [replace(one, profile=replace(one.profile, start_s=start_s)) for one in open_models(config)]
    results = ModelsRun(config, models, 200.0).run("slo", config.divisions()[0])
    asked = [action for one in results[0].decisions for action in one.actions if isinstance(action, AddWorkers)]
    assert asked == [AddWorkers("decode", 1)]


def test_a_worker_that_does_not_come_is_followed_by_others_ever_more_rarely_within_the_budget() -> None:
    chat, code = CONFIG.models
    rests = replace(chat, workload="isl=500,osl=20,rate=1,burst=1", split="1")
    sleeps = replace(code, workload="isl=500,osl=20,rate=0.2,burst=1", split="0", min_workers=0)
    planner = PlannerConfig(enabled=True, start_s=10.0)
    config = replace(CONFIG, planner=planner, budget=BudgetConfig(workers=4), models=(rests, sleeps), seconds=650.0)
    models = [replace(one, profile=replace(one.profile, start_s=600.0)) for one in open_models(config)]
    woken = ModelsRun(config, models, 650.0).run("slo", config.divisions()[0])[1]
    asked = [one.at_s for one in woken.decisions for action in one.actions if isinstance(action, AddWorkers)]
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert 2 <= len(asked) <= 3
    assert min(gaps) > LEAST_STUCK_S
    assert gaps == sorted(gaps)


@pytest.mark.parametrize("heavy", ["chat", "code"])
def test_where_there_are_too_few_workers_the_heavier_model_suffers_less(heavy: str) -> None:
    """Both would need four workers."""
    models = tuple(
        SimModelConfig(name, "isl=500,osl=500,rate=30,burst=1", split="2", weight=4.0 if name == heavy else 1.0)
        for name in ("chat", "code")
    )
    results = run(replace(CONFIG, models=models, seconds=60.0))
    light = "code" if heavy == "chat" else "chat"
    taken = {name: [one for one in result.decisions if one.actions] for name, result in results.items()}
    assert taken[heavy][0].transfers[0].giver == light
    assert not [one for one in taken[light] if one.at_s < 60.0]  # while requests come
    assert results[heavy].attainment > results[light].attainment + 0.2


def test_cost_is_that_of_all_workers_for_the_tokens_that_were_in_time() -> None:
    chat, code = CONFIG.models
    results = run(
        replace(CONFIG, planner=PlannerConfig(), models=(replace(chat, price_per_hour=3.6), code), seconds=20.0)
    )
    result = results["chat"]
    assert result.cost == pytest.approx(3.6 * 2 * result.simulated_s / 3600.0)
    tokens = sum(num for num, good in zip(result.outcomes.num_output, result.outcomes.is_good, strict=True) if good)
    assert result.cost_per_million == pytest.approx(result.cost / tokens * 1e6)
    assert results["code"].cost is None


def test_an_objective_of_cost_needs_prices() -> None:
    models = open_models(CONFIG)
    with pytest.raises(ValueError, match="objective: cost needs price_per_hour of the workers of chat"):
        load_shared_planner(PlannerConfig(objective="cost"), [model.share for model in models], CONFIG.budget)
