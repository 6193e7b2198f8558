"""Compares the placement policies: the real dispatcher over mock workers in virtual time, with traces of others.

    scripts/bench/placement/bench_placement.py [--traces DIR] [--workload NAME ...] [--policy NAME ...] [--json FILE]

Goodput is the number of requests a second that meet both their levels: time to first token, and mean time between
tokens.
Virtual time is exact and repeatable; what it leaves out is how busy the router itself is
(`scripts/bench/router/bench_router.py`).

The workers are what one GPU of 2024 with a model of 8 billion parameters is about: 20,000 prompt tokens a second, a
step of 10 ms that grows by 0.1 ms a sequence and 20 ns a token of context, pages at 3 GB/s.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.placement.mock_world import Outcome, World
from scripts.bench.placement.workloads import Arrival, azure, mixed, mooncake, requests
from slipstream.cluster.tools.bench.load.measures import percentile
from slipstream.router.config.router_config import DispatchConfig, PolicyName, SloConfig
from slipstream.router.protocol.generation import Slo
from slipstream.router.protocol.messages import Role
from slipstream.router.requests.placement_decision import REMOTE_REASONS
from slipstream.workers.mock.mock_profile import MockProfile

PROFILE = MockProfile(
    num_pages=24_576,  # 393,000 tokens
    max_slots=128,
    max_model_len=140_000,
    max_queued_tokens=131_072,
    max_step_tokens=2048,
    step_s=0.010,
    decode_token_s=1e-4,
    prefill_token_s=5e-5,
    context_token_s=2e-8,
    transfer_s=0.002,
    transfer_page_s=7e-4,
    start_lease_s=120.0,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One load: how many requests of which trace at which speed, on how many workers, under which levels."""

    workload: str
    limit: int
    speed: float
    num_prefill: int
    num_decode: int
    ttft_ms: float = 500.0
    itl_ms: float = 50.0

    @property
    def title(self) -> str:
        return (
            f"{self.workload} x{self.speed:g}, {self.num_prefill}P{self.num_decode}D, "
            f"TTFT {self.ttft_ms:g} ms, ITL {self.itl_ms:g} ms"
        )


SETTINGS = (
    Setting("azure", 1000, 1.0, 1, 1),
    Setting("azure", 1000, 4.0, 2, 2),
    Setting("azure", 1000, 6.0, 2, 2),
    Setting("mixed", 1000, 1.0, 2, 2),
    Setting("mixed", 1000, 2.0, 2, 2),
    Setting("mooncake", 600, 1.0, 3, 3, ttft_ms=2000.0),
    Setting("mooncake", 600, 2.0, 3, 3, ttft_ms=2000.0),
)


def arrivals_of(setting: Setting, traces: Path) -> list[Arrival]:
    match setting.workload:
        case "azure":
            return azure(traces / "azure2023_conv.3000.csv", setting.limit)
        case "mooncake":
            return mooncake(traces / "mooncake_conversation.2000.jsonl", setting.limit)
        case _:
            return mixed(setting.limit)


def run(setting: Setting, policy: PolicyName, arrivals: Sequence[Arrival]) -> dict[str, object]:
    """One policy under one load."""
    slo = Slo(setting.ttft_ms / 1e3, setting.itl_ms / 1e3)
    config = DispatchConfig(
        policy=policy,
        slo=SloConfig(setting.ttft_ms, setting.itl_ms),
        request_timeout_s=3600.0,
        queue_timeout_s=3600.0,
        reserve_timeout_s=60.0,
        max_queued_requests=100_000,
    )
    sides: list[tuple[Role, MockProfile]] = [("prefill", replace(PROFILE, max_slots=1024))] * setting.num_prefill
    world = World.of(config, [*sides, *[("decode", PROFILE)] * setting.num_decode])
    for at_s, output_length, request in requests(list(arrivals), setting.speed, slo):
        world.submit_at(request, at_s, output_length)
    began_s = time.perf_counter()
    world.run()
    outcomes = list(world.outcomes.values())
    snapshot = world.dispatcher.snapshot(world.now_s)
    return {
        "setting": setting.title,
        "policy": policy,
        **summary(outcomes, setting, max(o.arrived_s for o in outcomes)),
        "placements": dict(Counter(snapshot.totals.placements)),
        "ends": dict(Counter(outcome.reason for outcome in outcomes)),
        "simulated_s": world.now_s,
        "cpu_s": time.perf_counter() - began_s,
    }


def summary(outcomes: Sequence[Outcome], setting: Setting, span_s: float) -> dict[str, float]:
    first = [o.ttft_s for o in outcomes if o.ttft_s is not None]
    between = [o.itl_s for o in outcomes if o.num_tokens > 1]
    stalls = [max(o.gaps_s) for o in outcomes if o.gaps_s]
    good = sum(o.meets(setting.ttft_ms / 1e3, setting.itl_ms / 1e3) for o in outcomes)
    return {
        "good_share": good / len(outcomes),
        "goodput_rps": good / span_s,
        **{f"ttft_p{p}_ms": percentile(first, p / 100) * 1e3 for p in (50, 90, 99)},
        **{f"itl_p{p}_ms": percentile(between, p / 100) * 1e3 for p in (50, 90, 99)},
        "longest_gap_p50_ms": percentile(stalls, 0.5) * 1e3,
    }


def show(row: dict[str, object]) -> str:
    placements = row["placements"]
    assert isinstance(placements, dict)
    remote = sum(n for reason, n in placements.items() if reason in REMOTE_REASONS)
    numbers = [f"{row[key]:.{digits}f}" for key, digits in COLUMNS.items()]
    return " | ".join([f"{row['policy']:13}", *(number.rjust(7) for number in numbers), f"{remote:5d}"])


COLUMNS = {
    "good_share": 3,
    "goodput_rps": 2,
    "ttft_p50_ms": 0,
    "ttft_p90_ms": 0,
    "ttft_p99_ms": 0,
    "itl_p50_ms": 1,
    "itl_p90_ms": 1,
    "itl_p99_ms": 1,
    "longest_gap_p50_ms": 0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--workload", nargs="*", help="only these")
    parser.add_argument("--policy", nargs="*", choices=get_args(PolicyName), default=list(get_args(PolicyName)))
    parser.add_argument("--json", type=Path, help="also write everything there")
    arguments = parser.parse_args()
    rows = []
    for setting in SETTINGS:
        if arguments.workload and setting.workload not in arguments.workload:
            continue
        arrivals = arrivals_of(setting, arguments.traces)
        print(f"\n{setting.title}\n{'policy':13} | " + " | ".join(COLUMNS) + " | remote", flush=True)
        for policy in arguments.policy:
            rows.append(run(setting, policy, arrivals))
            print(show(rows[-1]), f"   {rows[-1]['ends']} {rows[-1]['cpu_s']:.0f} s", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
