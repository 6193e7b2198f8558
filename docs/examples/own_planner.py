"""A planner of one's own, tried beside the default one in the simulator: no Ray, no GPU, the same numbers each time.

    python docs/examples/own_planner.py

In a cluster it is named by `planner: {enabled: true, class_name: own_planner.WaitingPlanner}`.
"""

from dataclasses import replace

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetState
from slipstream.cluster.planner.planner_decision import AddWorkers, PlannerDecision, RemoveWorker
from slipstream.cluster.tools.sim.sim_config import SimConfig, Split
from slipstream.cluster.tools.sim.sim_run import ModelsRun, open_models
from slipstream.router.status.load_signals import Signals

RATE, NUM_REQUESTS = 20, 2000  # requests a second, and how many


class WaitingPlanner:
    """One more decode worker while requests wait, one fewer when less than a quarter of the slots are taken."""

    def __init__(self, config: PlannerConfig) -> None:
        self._config = config

    def decide(self, signals: Signals, fleet: FleetState, now: float) -> PlannerDecision:
        decode = [member for member in fleet.members if member.role == "decode"]
        most = self._config.max_workers or len(decode)
        if fleet.is_changing:
            return PlannerDecision(now, "changing", "a change is under way", fleet.num_prefill, fleet.num_decode)
        if signals.num_waiting and fleet.num_decode < most:
            actions = (AddWorkers("decode", 1),)
            return PlannerDecision(now, "slo", f"{signals.num_waiting} wait", 0, fleet.num_decode + 1, actions)
        workers = [worker for worker in signals.workers if worker.role == "decode"]
        num_slots = sum(worker.max_slots for worker in workers)
        if fleet.num_decode > 1 and sum(worker.num_seqs for worker in workers) < num_slots / 4:
            actions = (RemoveWorker(decode[-1].name),)
            return PlannerDecision(now, "cheaper", "most slots are free", 0, fleet.num_decode - 1, actions)
        return PlannerDecision(now, "holds", "no request waits", fleet.num_prefill, fleet.num_decode)


def main() -> None:
    config = SimConfig(
        workload=f"isl=2000,osl=400,rate={RATE}", requests=NUM_REQUESTS, splits=("4",), profile="h200-llama-8b", seed=1
    )
    planner = PlannerConfig(enabled=True, max_workers=6, settle_s=5.0)
    for class_name in (None, "own_planner.WaitingPlanner"):
        tried = replace(config, planner=replace(planner, class_name=class_name))
        models = open_models(tried)
        (result,) = ModelsRun(tried, models, models[0].workload.last_s).run("slo", [Split(0, 4)])
        changes = [decision for decision in result.decisions if decision.actions]
        print(f"{class_name or 'the default planner'}: {result.attainment:.1%} of the requests within both levels,")
        print(f"  {sum(result.worker_s.values()) / result.simulated_s:.1f} workers on average, {len(changes)} changes")
        for decision in changes[:3]:
            print(f"  after {decision.at_s:.0f} s: {', '.join(map(str, decision.actions))}: {decision.why}")


if __name__ == "__main__":
    main()
