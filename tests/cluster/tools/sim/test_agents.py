"""Agents in the simulator: their turns follow one another, and their pages are kept while tools run."""

from __future__ import annotations

from slipstream.cluster.tools.sim.run_result import RunResult
from slipstream.cluster.tools.sim.sim_config import SimConfig
from slipstream.cluster.tools.sim.sim_run import ModelsRun, open_models
from slipstream.router.config.router_config import RetentionConfig


def simulated(enabled: bool, workload: str = "agents,rate=0.6,turns=12", requests: int = 40) -> RunResult:
    config = SimConfig(
        workload=workload, requests=requests, splits=("1",), retention=RetentionConfig(enabled=enabled), seed=1
    )
    models = open_models(config)
    [result] = ModelsRun(config, models, models[0].workload.last_s).run("slo", config.divisions()[0])
    return result


def test_every_turn_is_served_once_and_more_is_found_again_where_pages_are_kept() -> None:
    [model] = open_models(SimConfig(workload="agents,rate=0.6,turns=12", requests=40, seed=1))
    num_turns = 0
    for first in model.workload:
        turn = first
        while turn is not None:
            num_turns += 1
            turn = turn.then
    kept, plain = simulated(True), simulated(False)
    for result in (kept, plain):
        assert len(result.outcomes) == num_turns
        assert set(result.outcomes.ends) == {"stop"}
    assert kept.cached_share > plain.cached_share


def test_the_same_seed_gives_the_same_run() -> None:
    few = "agents,rate=0.4,turns=4"
    assert simulated(True, few).outcomes == simulated(True, few).outcomes
