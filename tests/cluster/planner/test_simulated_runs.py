"""The planner over the simulated cluster, with the production dispatcher between them."""

from __future__ import annotations

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.tools.sim.sim_config import SimConfig, Split
from slipstream.cluster.tools.sim.sim_run import SimRun, find_profile
from slipstream.cluster.tools.workload.workload import open_workload
from slipstream.router.config.router_config import SloConfig


def test_the_planner_moves_workers_to_where_the_load_is() -> None:
    config = SimConfig(planner=PlannerConfig(enabled=True, settle_s=5.0))
    workload = open_workload("isl=6000,osl=10,rate=14,spread=0.2", 1200)
    result = SimRun(config, find_profile(config.profile), workload, 1200 / 14).run("slo", Split(1, 3))
    assert result.outcomes.ends["stop"] == 1200
    assert any(decision.actions for decision in result.decisions)


def test_the_planner_does_not_go_back_and_forth_between_splits_that_it_predicts_alike() -> None:
    config = SimConfig(slo=SloConfig(2000.0, 50.0), planner=PlannerConfig(enabled=True))
    workload = open_workload("isl=8000,osl=300,rate=9,spread=1", 1500)
    result = SimRun(config, find_profile(config.profile), workload, 1500 / 9).run("slo", Split(2, 6))
    # After 55 of 167 s, no prefill workers are predicted to keep 55% where 44% are kept.
    assert [(one.num_prefill, one.num_decode) for one in result.decisions] == [(0, 8)]
