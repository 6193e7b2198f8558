"""How many instances a version of a tensor model gets from the planner, as its load comes and goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.planner.instances.instance_share import InstanceShare
from slipstream.cluster.planner.planner_decision import PlannerDecision
from slipstream.cluster.planner.shared.budget_planner import BudgetPlanner
from slipstream.cluster.planner.shared.cluster_planner import ClusterPlanner
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from tests.support.cluster.fluid_tensor_model import FluidTensorModel

BOUNDS = InstanceCountsConfig(min=1, max=8, shrink_after_s=60.0)


@dataclass
class Cluster:
    """Tensor models in virtual time, whose planner looks every five seconds."""

    models: list[FluidTensorModel]
    bounds: dict[str, InstanceCountsConfig]
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    max_instances: int | None = None
    now: float = 0.0
    decisions: list[tuple[float, str, PlannerDecision]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = PlannerConfig(enabled=True)
        self.planner = ClusterPlanner(config, BudgetPlanner(config, (), self.budget), self.max_instances)

    def run(self, seconds: float, **rates: float) -> None:
        end_s = self.now + seconds
        while self.now < end_s:
            self.now += 5.0
            for model in self.models:
                model.run(self.now, rates.get(model.name, 0.0))
            self.planner.follow((), {name: InstanceShare(name, counts) for name, counts in self.bounds.items()})
            seen = [model.signals() for model in self.models]
            for name, decision in self.planner.decide({}, {}, seen, self.now).items():
                self.decisions.append((self.now, name, decision))
                for model in self.models:
                    if model.name == name and decision.actions:
                        assert decision.num_instances is not None
                        model.resize(decision.num_instances, self.now)

    @property
    def counts(self) -> dict[str, int]:
        return {model.name: model.count for model in self.models}

    def reasons(self, name: str = "a") -> list[str]:
        return [decision.reason for _, model, decision in self.decisions if model == name and decision.actions]


def asked(cluster: Cluster) -> list[int]:
    return [decision.num_instances or 0 for _, _, decision in cluster.decisions if decision.actions]


def one(bounds: InstanceCountsConfig = BOUNDS) -> Cluster:
    return Cluster([FluidTensorModel("a", 0.1)], {"a": bounds})


def test_as_many_instances_come_as_the_load_needs_and_the_queue_is_emptied() -> None:
    cluster = one()
    cluster.run(60, a=25.0)  # 2.5 instances would be busy all the time, at 0.75: 3.33
    assert 4 <= cluster.counts["a"] <= 8  # some help with the queue of the first seconds
    assert cluster.models[0].num_waiting == 0
    cluster.run(900, a=25.0)
    assert cluster.counts["a"] in (4, 5)
    assert set(cluster.reasons()) <= {"slo", "goodput", "cheaper"}


def test_the_room_that_the_target_leaves_helps_to_empty_the_queue_before_more_instances_come() -> None:
    cluster = one()
    cluster.run(60, a=25.0)
    assert asked(cluster) == [2, 4]  # 2.5 for what comes; the others, busy as well, empty the queue
    assert cluster.models[0].num_waiting == 0


@pytest.mark.parametrize("start_s", [10.0, 30.0, 60.0])
def test_the_queue_of_a_slow_start_brings_hardly_more_instances_than_what_comes_needs(start_s: float) -> None:
    cluster = one(replace(BOUNDS, max=16))
    cluster.models[0] = FluidTensorModel("a", 0.1, start_s=start_s)
    cluster.run(600, a=25.0)
    assert asked(cluster)[:2] == [2, 4]
    assert max(asked(cluster)) <= 5
    assert cluster.models[0].num_waiting == 0


def test_they_go_when_fewer_were_enough_for_as_long_as_the_model_says() -> None:
    cluster = one()
    cluster.run(60, a=25.0)
    grown = max(at_s for at_s, _, decision in cluster.decisions if decision.actions)
    cluster.run(600, a=2.0)
    assert cluster.counts["a"] == 1
    first = next(at_s for at_s, _, decision in cluster.decisions if decision.reason == "cheaper")
    assert first >= grown + 60.0
    steps = [d.num_instances for _, _, d in cluster.decisions if d.reason == "cheaper"]
    assert steps == sorted(steps, key=lambda count: -(count or 0))  # a quarter at once, and at least one


def test_the_bounds_are_kept() -> None:
    cluster = one(replace(BOUNDS, min=2, max=3))
    cluster.run(30)
    assert cluster.counts["a"] == 2
    assert cluster.reasons() == ["limits"]
    cluster.run(120, a=100.0)
    assert cluster.counts["a"] == 3
    assert cluster.decisions[-1][2].reason == "best_there_is"


def test_requests_that_wait_longer_than_they_may_bring_instances_though_none_is_too_busy() -> None:
    patient, hasty = one(), one(replace(BOUNDS, queue_ms=1.0))
    for cluster in (patient, hasty):
        cluster.run(120, a=7.0)  # 0.7 instances
    assert patient.counts["a"] == 1
    assert hasty.counts["a"] > 1


def test_a_load_that_swings_makes_fewer_and_fewer_changes() -> None:
    cluster = one(replace(BOUNDS, shrink_after_s=20.0))
    for _ in range(20):
        cluster.run(40, a=25.0)
        cluster.run(40, a=1.0)
    half = cluster.now / 2
    changes = Counter(at_s < half for at_s, _, decision in cluster.decisions if decision.actions)
    assert changes[False] <= changes[True]
    assert changes.total() < 60


def test_instances_that_fail_to_start_are_tried_ever_more_rarely() -> None:
    cluster = one()
    cluster.models[0].fails = True
    cluster.run(900, a=25.0)
    tries = [at_s for at_s, _, decision in cluster.decisions if decision.actions]
    assert 2 <= len(tries) <= 6
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps == sorted(gaps)
    assert "backed_off" in {decision.reason for _, _, decision in cluster.decisions}


def test_a_router_that_counts_from_zero_again_changes_nothing() -> None:
    cluster = one()
    cluster.run(120, a=25.0)
    before = len(cluster.reasons())
    cluster.models[0].begin_anew()
    cluster.run(30, a=25.0)
    assert len(cluster.reasons()) == before


@pytest.mark.parametrize("budget", [BudgetConfig(cpus=4.0), BudgetConfig(gpus=1.0)])
def test_all_together_keep_the_budget_and_a_shifting_load_moves_it(budget: BudgetConfig) -> None:
    bounds = replace(BOUNDS, num_cpus=1.0, num_gpus=0.25)
    models = [FluidTensorModel("a", 0.1), FluidTensorModel("b", 0.1)]
    cluster = Cluster(models, {"a": bounds, "b": bounds}, budget)
    cluster.run(120, a=28.0, b=2.0)
    assert cluster.counts == {"a": 3, "b": 1}
    cluster.run(200, a=2.0, b=28.0)
    assert cluster.counts == {"a": 1, "b": 3}
    assert "gives" in cluster.reasons("a")
    assert all(decision.why for _, _, decision in cluster.decisions)


def test_the_heavier_of_two_gets_more_of_what_is_too_little_for_both() -> None:
    models = [FluidTensorModel("a", 0.1), FluidTensorModel("b", 0.1)]
    cluster = Cluster(models, {"a": replace(BOUNDS, weight=3.0), "b": BOUNDS}, max_instances=4)
    cluster.run(200, a=40.0, b=40.0)
    assert cluster.counts == {"a": 3, "b": 1}
