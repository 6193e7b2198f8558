"""Language models and tensor models in virtual time: one budget, which a shifting load moves from one to the other."""

from __future__ import annotations

from collections import Counter

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.planner.instances.instance_share import InstanceShare
from slipstream.cluster.planner.planner_actions import carry_out
from slipstream.cluster.planner.planner_decision import PlannerDecision, SetInstances
from slipstream.cluster.planner.shared.budget_planner import BudgetPlanner
from slipstream.cluster.planner.shared.cluster_planner import ClusterPlanner
from slipstream.cluster.planner.shared.model_share import ModelShare, WorkerNeeds
from slipstream.cluster.tools.sim.sim_config import SimConfig
from slipstream.cluster.tools.sim.sim_fleet import SimModelFleet
from slipstream.cluster.tools.sim.sim_run import Machines, ModelsRun, VirtualClock, open_models, run_worlds
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.router_config import SloConfig
from tests.support.cluster.fluid_tensor_model import FluidTensorModel

NUM_CPUS = 4
LOADS = ((150.0, 2.0), (350.0, 40.0), (600.0, 2.0))  # until when: requests to the tensor model a second


class Shift:
    """A language model that needs about two of four CPUs, and a tensor model that wants up to four for a while."""

    def __init__(self, weight: float) -> None:
        planner = PlannerConfig(enabled=True, max_workers=NUM_CPUS)
        config = SimConfig(
            slo=SloConfig(1000.0, 20.0), planner=planner, workload="isl=500,osl=300,rate=1,burst=1", seconds=600.0
        )
        models = open_models(config)
        self.clock = VirtualClock()
        run = ModelsRun(config, models, config.seconds)
        self.world = run.world(models[0], "slo", self.clock, Machines())
        self.fleet = SimModelFleet({"chat": self.world}, None)
        self.fleet.of_model("chat").start("decode", 3)
        self.tensor = FluidTensorModel("topics", 0.1)
        share = ModelShare("chat", 1.0, 1, WorkerNeeds(num_cpus=1.0), WorkerNeeds(num_cpus=1.0))
        self.planner = ClusterPlanner(planner, BudgetPlanner(planner, (share,), BudgetConfig(cpus=NUM_CPUS)), None)
        counts = InstanceCountsConfig(min=1, max=4, shrink_after_s=30.0, weight=weight)
        self.planner.follow([share], {"topics": InstanceShare("topics", counts)})
        self.made: list[tuple[float, str, PlannerDecision]] = []
        self.used: list[tuple[float, int, int]] = []  # when, workers, instances
        self.clock.at(5.0, self._look)
        self.world.begin(iter(models[0].workload))
        run_worlds([self.world], None)

    def _look(self, _: object) -> None:
        now = self.clock.now_s
        self.tensor.run(now, next((rate for end_s, rate in LOADS if now <= end_s), 0.0))
        state = self.fleet.of_model("chat").state()
        self.used.append((now, len(state.members), self.tensor.count))
        seen = {"chat": self.world.dispatcher.signals(now)}
        for name, decision in self.planner.decide(seen, {"chat": state}, [self.tensor.signals()], now).items():
            if decision.actions:
                self.made.append((now, name, decision))
            for action in decision.actions:
                if isinstance(action, SetInstances):
                    self.tensor.resize(action.count, now)
                    continue
                try:
                    carry_out(action, self.fleet.of_model("chat"), self.fleet).send(None)
                except (StopIteration, FleetError):
                    continue
        if now < LOADS[-1][0]:
            self.clock.at(now + 5.0, self._look)


def test_a_shifting_load_moves_the_budget_from_workers_to_instances_and_back() -> None:
    shift = Shift(1.0)
    assert all(workers + instances <= NUM_CPUS for _, workers, instances in shift.used)
    most = max(instances for at_s, _, instances in shift.used if 150.0 < at_s <= 350.0)
    assert most > 1
    assert shift.used[-1][2] < most
    reasons = Counter((name, decision.reason) for _, name, decision in shift.made)
    assert reasons[("topics", "slo")] + reasons[("topics", "goodput")] >= 1
    assert len(shift.made) < 20
    assert shift.world.outcomes.ends.keys() == {"stop"}


def test_a_tensor_model_that_weighs_more_gets_workers_of_the_language_model() -> None:
    heavy, light = Shift(8.0), Shift(0.1)
    in_burst = [
        max(instances for at_s, _, instances in shift.used if 150.0 < at_s <= 350.0) for shift in (heavy, light)
    ]
    assert in_burst[0] == 3
    assert in_burst[1] <= in_burst[0]
    workers = [count for at_s, count, _ in heavy.used if 300.0 < at_s <= 350.0]
    assert set(workers) == {1}
    taken = [
        decision for _, name, decision in heavy.made if name == "chat" and decision.reason in ("limits", "cheaper")
    ]
    assert taken
