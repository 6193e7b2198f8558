"""The simulator's workers, which solve for their steps, against the mock engine, which makes them one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from scripts.bench.placement.mock_world import World as MockWorld
from scripts.bench.placement.workloads import requests as bench_requests
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile, WorkerRoleProfile
from slipstream.cluster.tools.sim.run_result import RunResult
from slipstream.cluster.tools.sim.sim_config import SimConfig, Split
from slipstream.cluster.tools.sim.sim_run import SimRun
from slipstream.cluster.tools.workload.arrival import Arrival
from slipstream.cluster.tools.workload.mix import Mix, RequestKind
from slipstream.cluster.tools.workload.workload import Workload
from slipstream.router.config.router_config import DispatchConfig, PolicyName
from slipstream.router.protocol.generation import Slo
from slipstream.workers.mock.mock_profile import MockProfile

MOCK = MockProfile(
    num_pages=24_576,
    max_slots=64,
    max_model_len=32_768,
    max_queued_tokens=65_536,
    step_s=0.010,
    decode_token_s=1e-4,
    prefill_token_s=5e-5,
    context_token_s=2e-8,
    transfer_s=0.002,
    prefix_caching=False,
)
ROLE = WorkerRoleProfile(0.010, 1e-4, 2e-8, 0.010, 5e-5, 0.0, 64, 2048, 65_536)
PROFILE = WorkerProfile(
    name="mock",
    source="the mock engine's, above",
    prefill=ROLE,
    decode=ROLE,
    page_tokens=16,
    num_pages=24_576,
    max_model_len=32_768,
    num_layers=32,
    kv_bytes_per_token=1000,
    link_bytes_per_s=1e12,
    link_latency_s=0.002,
    hears_between_steps=False,
)
MIX = Mix((RequestKind("chat", 0.8, 300, 150), RequestKind("document", 0.2, 3000, 60)), rate_rps=14.0, burst=1.5)
NUM_REQUESTS = 300


def simulated(policy: PolicyName, split: Split, report_s: float) -> RunResult:
    workload = Workload("mix", NUM_REQUESTS, mix=MIX, seed=5)
    config = SimConfig(report_s=report_s)
    return SimRun(config, PROFILE, workload, 60.0).run(policy, split)


def stepped(policy: PolicyName, split: Split) -> tuple[list[float], list[float]]:
    """TTFT and mean ITL of all requests, milliseconds, as the mock engines give them."""
    sides = [("prefill", replace(MOCK, max_slots=1024))] * split.num_prefill + [("decode", MOCK)] * split.num_decode
    config = DispatchConfig(policy=policy, request_timeout_s=3600.0, max_queued_requests=100_000)
    world = MockWorld.of(config, sides)  # type: ignore[arg-type]
    arrivals = [
        Arrival(a.at_s, a.input_length, a.output_length, tuple(range(100 * at, 100 * at + 60)))
        for at, a in enumerate(islice(MIX.arrivals(5), NUM_REQUESTS))
    ]
    for at_s, output_length, request in bench_requests(arrivals, 1.0, Slo()):  # type: ignore[arg-type]
        world.submit_at(request, at_s, output_length)
    world.run()
    outcomes = list(world.outcomes.values())
    assert all(outcome.reason == "stop" for outcome in outcomes)
    return [o.ttft_s * 1e3 for o in outcomes if o.ttft_s is not None], [
        o.itl_s * 1e3 for o in outcomes if o.num_tokens > 1
    ]


@pytest.mark.parametrize(
    ("policy", "split"),
    [("least_loaded", Split(1, 2)), ("round_robin", Split(2, 2)), ("slo", Split(2, 2)), ("slo", Split(0, 3))],
    ids=str,
)
def test_it_says_what_step_by_step_engines_say(policy: PolicyName, split: Split) -> None:
    ttft_ms, itl_ms = stepped(policy, split)
    outcomes = simulated(policy, split, 2.0).outcomes
    assert dict(outcomes.ends) == {"stop": NUM_REQUESTS}
    for mine, theirs in ((outcomes.ttft_s, ttft_ms), (outcomes.itl_s, itl_ms)):
        values = np.asarray(mine) * 1e3
        values = values[~np.isnan(values)]
        assert len(values) == len(theirs)
        assert values.mean() == pytest.approx(np.mean(theirs), rel=0.06)
        assert np.percentile(values, 50) == pytest.approx(np.percentile(theirs, 50), rel=0.05)
        assert np.percentile(values, 90) == pytest.approx(np.percentile(theirs, 90), rel=0.10)


def test_runs_of_steps_are_the_steps() -> None:
    """Under a policy that does not look at the load, what workers tell makes no difference to where requests go."""
    coarse = simulated("round_robin", Split(2, 2), 5.0)
    fine = simulated("round_robin", Split(2, 2), 0.0)
    assert np.asarray(coarse.outcomes.ended_s) == pytest.approx(np.asarray(fine.outcomes.ended_s), rel=1e-6)
    assert np.asarray(coarse.outcomes.ttft_s) == pytest.approx(np.asarray(fine.outcomes.ttft_s), rel=1e-3, abs=1e-6)
    assert fine.num_events > 1.5 * coarse.num_events
