"""The simulator against reality: the same small workload on a real local cluster and in `slipstream sim`.

    .venv/bin/python -m scripts.check_simulation [--workload MIX] [--seconds 20] [--rounds 3]

Starts the cluster of a configuration on free ports, and in each round sends it one workload of a seed of its own to
learn the times of its workers from, then another one to compare. The simulator gets what the router has fitted
(`GET /cluster/profile`), what clients of the first workload waited beyond that, and the second workload. Medians over
the rounds are what counts; the exit code is 1 where one of them is off by more than `--limit`.

ITL is shown and not judged: on a machine of a few cores it is as much the operating system's as ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from slipstream.cluster.bench.profiling import profile_of
from slipstream.cluster.report.table import Cell, Table
from slipstream.cluster.sim.config import SimConfig, Split
from slipstream.cluster.sim.profile import WorkerProfile
from slipstream.cluster.sim.run import SimRun
from slipstream.cluster.workload.arrival import Arrival
from slipstream.cluster.workload.mix import parse_mix
from slipstream.cluster.workload.workload import Workload
from slipstream.router.config import SloConfig
from slipstream.router.placement.service_times import ServiceTimes
from tests.e2e.serving_cluster import ServingCluster

ROOT = Path(__file__).resolve().parent.parent
FIRST_ID, NUM_IDS = 300, 1000  # of the tokens that prompts are made of: ordinary ones of any vocabulary
WARM_UP_S = 5.0
NUM_EXCHANGES = 30


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one workload: milliseconds, and tokens a second from the first arrival to the last token."""

    ttft_ms: float
    ttft_mean_ms: float
    itl_ms: float
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One request on the real cluster: seconds since the workload began, and its tokens."""

    arrived_s: float
    first_s: float
    ended_s: float
    num_output: int


async def ask(
    session: aiohttp.ClientSession, url: str, model: str, arrival: Arrival, began_s: float, rng: random.Random
) -> Seen:
    """A request at its time, with a prompt that nobody else has."""
    prompt = [FIRST_ID + rng.randrange(NUM_IDS) for _ in range(arrival.input_length)]
    await asyncio.sleep(max(began_s + arrival.at_s - time.perf_counter(), 0.0))
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": arrival.output_length,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    sent_s = time.perf_counter()
    first_s: float | None = None
    last_s = sent_s
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {(await response.text())[:200]}")
        async for line in response.content:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                last_s = time.perf_counter()
                first_s = first_s or last_s
    if first_s is None:
        raise RuntimeError("an answer ended without a token")
    return Seen(sent_s - began_s, first_s - began_s, last_s - began_s, arrival.output_length)


async def on_the_cluster(url: str, model: str, arrivals: list[Arrival], seed: int) -> list[Seen]:
    rng = random.Random(seed)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:
        began_s = time.perf_counter() + 0.2
        tasks = [asyncio.create_task(ask(session, url, model, one, began_s, rng)) for one in arrivals]
        return list(await asyncio.gather(*tasks))


def figures_of(seen: list[Seen]) -> Figures:
    ttft = [one.first_s - one.arrived_s for one in seen]
    itl = [(one.ended_s - one.first_s) / (one.num_output - 1) for one in seen if one.num_output > 1]
    span_s = max(one.ended_s for one in seen) - min(one.arrived_s for one in seen)
    return Figures(
        statistics.median(ttft) * 1e3,
        statistics.mean(ttft) * 1e3,
        statistics.median(itl) * 1e3,
        sum(one.num_output for one in seen) / span_s,
    )


def in_the_simulator(profile: WorkerProfile, arrivals: list[Arrival], split: Split) -> Figures:
    workload = Workload("check", len(arrivals), trace=tuple(arrivals))
    config = SimConfig(slo=SloConfig(), report_s=0.25)
    outcomes = SimRun(config, profile, workload, arrivals[-1].at_s).run("slo", split).outcomes
    return figures_of(
        [
            Seen(arrived, arrived + ttft, ended, num)
            for arrived, ttft, ended, num in zip(
                outcomes.arrived_s, outcomes.ttft_s, outcomes.ended_s, outcomes.num_output, strict=True
            )
        ]
    )


def learned(cluster: ServingCluster, model_dir: Path) -> WorkerProfile:
    """What the router has measured of its workers."""
    status, body = cluster.get("/cluster/profile")
    if status != 200:
        raise RuntimeError(f"GET /cluster/profile: HTTP {status}")
    told = json.loads(body)
    source = "fitted by the router of the running cluster"
    profile = profile_of(told, "local", source, model_dir, None, None, has_gpus=False, shares_cores=False)
    reserve_s = {
        role["role"]: ServiceTimes.from_dict(role["times"]).coefficients("reserve")[0] for role in told["roles"]
    }["decode"]
    # A reservation is a message there and one back. Where the worker is computing it waits for the end of the step, of
    # which the simulator knows; half a step is what it waits on average.
    busy_s = 0.5 * profile.decode.decode_s(1, 0) if reserve_s > profile.decode.decode_s(1, 0) else 0.0
    return replace(profile, message_s=min(max(0.5 * (reserve_s - busy_s), 1e-4), 5e-3), client_s=exchange_s(cluster))


def with_overhead(profile: WorkerProfile, arrivals: list[Arrival], seen: list[Seen], split: Split) -> WorkerProfile:
    """With what clients waited longer for first tokens than workers and messages account for: HTTP, tokens as JSON, and
    threads that are woken up. Learned from the first workload, so nothing of the second is known."""
    missing_s = (figures_of(seen).ttft_ms - in_the_simulator(profile, arrivals, split).ttft_ms) / 1e3
    return replace(profile, client_s=max(profile.client_s + missing_s, 0.0))


def exchange_s(cluster: ServingCluster) -> float:
    """An exchange over HTTP with the router, about nothing."""
    taken = []
    for _ in range(NUM_EXCHANGES):
        began_s = time.perf_counter()
        cluster.get("/v1/models")
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken)


def arrivals_of(mix: str, seconds: float, seed: int, longest: int) -> list[Arrival]:
    found: list[Arrival] = []
    for arrival in parse_mix(mix).arrivals(seed):
        if arrival.at_s > seconds:
            return found
        output = min(arrival.output_length, longest // 4)
        found.append(
            replace(arrival, input_length=min(arrival.input_length, longest - output - 1), output_length=output)
        )
    raise AssertionError("a mix never ends")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "local.yaml")
    parser.add_argument("--workload", default="isl=800,osl=64,rate=3,spread=0.4")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each workload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=0.15)
    parser.add_argument("--profile", type=Path, help="also write the last profile there")
    arguments = parser.parse_args()
    settings: dict[str, Any] = yaml.safe_load(arguments.config.read_text())
    model_dir = (arguments.config.parent / settings["model"]["path"]).resolve()
    settings["model"]["path"] = str(model_dir)
    settings.setdefault("router", {}).setdefault("http", {})["port"] = 0
    split = Split(settings["prefill"]["replicas"], settings["decode"]["replicas"])
    rows: list[list[Cell]] = []
    errors: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, ServingCluster(Path(folder), settings) as cluster:
        model = json.loads(cluster.get("/v1/models")[1])["data"][0]["id"]
        longest = json.loads(cluster.get("/cluster/profile")[1])["roles"][0]["max_model_len"]

        def send(seconds: float, seed: int) -> tuple[list[Arrival], list[Seen]]:
            arrivals = arrivals_of(arguments.workload, seconds, seed, longest)
            return arrivals, asyncio.run(on_the_cluster(cluster.base_url, model, arrivals, seed))

        send(WARM_UP_S, arguments.seed)
        for number in range(arguments.rounds):
            known, seen = send(arguments.seconds, arguments.seed + 100 + number)
            profile = with_overhead(learned(cluster, model_dir), known, seen, split)
            arrivals, seen = send(arguments.seconds, arguments.seed + 200 + number)
            real, simulated = figures_of(seen), in_the_simulator(profile, arrivals, split)
            for name in ("ttft_ms", "ttft_mean_ms", "itl_ms", "output_tokens_per_s"):
                measured, said = getattr(real, name), getattr(simulated, name)
                error = said / measured - 1
                errors.setdefault(name, []).append(error)
                rows.append([number + 1, name, measured, said, f"{error:+.1%}"])
    print(Table("Reality and simulator", ("round", "figure", "real", "simulated", "error"), rows).text())
    medians = {name: statistics.median(values) for name, values in errors.items()}
    print("medians: " + ", ".join(f"{name} {error:+.1%}" for name, error in medians.items()))
    if arguments.profile is not None:
        profile.write(arguments.profile)
    sys.exit(any(abs(medians[name]) > arguments.limit for name in ("ttft_ms", "output_tokens_per_s")))


if __name__ == "__main__":
    main()
