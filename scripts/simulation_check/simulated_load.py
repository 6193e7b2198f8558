"""Runs the measured requests in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scripts.simulation_check.measured_load import Seen
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.cluster.tools.sim.sim_config import SimConfig, Split
from slipstream.cluster.tools.sim.sim_run import SimRun
from slipstream.cluster.tools.workload.arrival import Arrival
from slipstream.cluster.tools.workload.workload import Workload

REPORT_S = 0.1  # the router hears as often of steps as of real workers
PAUSE_S = 30.0  # long enough that nothing of the first requests runs any more


def simulated(
    profile: WorkerProfile, before: Sequence[Arrival], arrivals: Sequence[Arrival], split: Split, seed: int = 0
) -> list[Seen]:
    """What clients of `arrivals` see. The router has served `before` by then, as the real one has: it knows how long
    its workers take."""
    begin_s = before[-1].at_s + PAUSE_S if before else 0.0
    trace = (*before, *(replace(one, at_s=begin_s + one.at_s) for one in arrivals))
    workload = Workload("check", len(trace), trace=trace)
    config = SimConfig(report_s=REPORT_S, seed=seed)
    outcomes = SimRun(config, profile, workload, trace[-1].at_s).run("slo", split).outcomes
    rows = zip(outcomes.arrived_s, outcomes.ttft_s, outcomes.ended_s, outcomes.num_output, strict=True)
    return [
        Seen(arrived - begin_s, arrived + ttft - begin_s, ended - begin_s, num)
        for arrived, ttft, ended, num in sorted(rows)
        if arrived >= begin_s - 1e-6
    ]
