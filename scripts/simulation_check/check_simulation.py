"""The simulator against reality: the same small workload on a real local cluster and in `slipstream sim`.

    .venv/bin/python scripts/simulation_check/check_simulation.py [--workload MIX_OR_TRACE ...] [--seconds 12] [--rounds
    3]

Starts the cluster of a configuration on free ports, measures it once with requests of its own (`simulation_check/
calibration.py`), and then sends it each workload several times: a mix with another seed each time, of a trace the
stretch that comes next. The simulator knows the profile and the arrivals, nothing of what came of them. Medians over
the rounds are what counts; the exit code is 1 where one of them is off by more than `--limit`.

Each round says what part of the machine other programs took meanwhile: where that is much, a round proves nothing.
ITL is shown and not judged: on a machine of a few cores it is as much the operating system's as ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import psutil
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.simulation_check.measured_load import Seen, Target, at_their_times
from scripts.simulation_check.profile_calibration import calibrate
from scripts.simulation_check.simulated_load import simulated
from slipstream.cluster.tools.report.table import Cell, Table
from slipstream.cluster.tools.sim.sim_config import Split
from slipstream.cluster.tools.workload.arrival import Arrival
from slipstream.cluster.tools.workload.workload import open_workload
from tests.support.e2e.serving_cluster import ServingCluster

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ("isl=800,osl=64,rate=2,spread=0.4",)
MAX_REQUESTS = 10_000
JUDGED = ("ttft_ms", "ttft_mean_ms", "output_tokens_per_s")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one workload: milliseconds, and tokens a second from the first arrival to the last token."""

    ttft_ms: float
    ttft_mean_ms: float
    itl_ms: float
    output_tokens_per_s: float

    @classmethod
    def of(cls, seen: Sequence[Seen]) -> Figures:
        ttft_s = [one.ttft_s for one in seen]
        itl_s = [(one.ended_s - one.first_s) / (one.num_output - 1) for one in seen if one.num_output > 1]
        span_s = max(one.ended_s for one in seen) - min(one.arrived_s for one in seen)
        return cls(
            statistics.median(ttft_s) * 1e3,
            statistics.mean(ttft_s) * 1e3,
            statistics.median(itl_s) * 1e3,
            sum(one.num_output for one in seen) / span_s,
        )


class Machine:
    """What the cores of this machine have done for others than the cluster and this program."""

    def __init__(self, cluster: ServingCluster) -> None:
        self._ours = [psutil.Process(), *cluster.processes()]
        self._began = self._read()

    def _read(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        whole = sum(times) - getattr(times, "guest", 0.0)
        ours = sum(sum(one.cpu_times()[:2]) for one in self._ours if one.is_running())
        return whole, whole - times.idle - times.iowait, ours

    @property
    def others(self) -> float:
        """Their share of all cores since this was made."""
        whole, busy, ours = (now - then for now, then in zip(self._read(), self._began, strict=True))
        return max(busy - ours, 0.0) / max(whole, 1e-9)


def arrivals_of(source: str, speed: float, seconds: float, number: int, longest: int) -> list[Arrival]:
    """Stretch `number` of a trace, or a mix with that seed, in lengths that the model takes. Prompts share nothing."""
    workload = open_workload(source, None, speed, seed=number)
    if workload.mix is not None:
        workload, begin_s = replace(workload, num_requests=MAX_REQUESTS), 0.0
    else:
        begin_s = number * seconds
    found: list[Arrival] = []
    for one in takewhile(lambda one: one.at_s < begin_s + seconds, workload):
        if one.at_s >= begin_s:
            output = min(one.output_length, longest // 4)
            length = min(one.input_length, longest - output - 1)
            found.append(Arrival(one.at_s - begin_s, length, output))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "local.yaml")
    parser.add_argument("--workload", action="append", help="a mix, or a trace with its speed as trace.csv@0.5")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=0.15)
    parser.add_argument("--profile", type=Path, help="also write the profile there")
    parser.add_argument("--dump", type=Path, help="also write there what clients saw, as JSON")
    arguments = parser.parse_args()
    settings: dict[str, Any] = yaml.safe_load(arguments.config.read_text())
    model_dir = (arguments.config.parent / settings["model"]["path"]).resolve()
    settings["model"]["path"] = str(model_dir)
    settings.setdefault("router", {}).setdefault("http", {})["port"] = 0
    split = Split(settings["prefill"]["replicas"], settings["decode"]["replicas"])
    dumped: list[dict[str, Any]] = []
    is_off = False
    with tempfile.TemporaryDirectory() as folder, ServingCluster(Path(folder), settings) as cluster:
        model = json.loads(cluster.get("/v1/models")[1])["data"][0]["id"]
        longest = json.loads(cluster.get("/cluster/profile")[1])["roles"][0]["max_model_len"]
        target = Target(cluster.base_url, model)
        machine = Machine(cluster)
        profile = calibrate(cluster.get, target, model_dir)
        print(f"calibrated; others took {machine.others:.1%} of the machine", flush=True)
        if arguments.profile is not None:
            profile.write(arguments.profile)
        for source in arguments.workload or WORKLOADS:
            name, _, speed = source.partition("@")
            rows: list[list[Cell]] = []
            errors: dict[str, list[float]] = {}
            for number in range(arguments.rounds):
                before, arrivals = (
                    arrivals_of(name, float(speed or 1.0), arguments.seconds, arguments.seed + at, longest)
                    for at in (0, 1 + number)
                )
                machine = Machine(cluster)
                seen = asyncio.run(at_their_times(target, arrivals, number))
                others = machine.others
                real, said = Figures.of(seen), Figures.of(simulated(profile, before, arrivals, split))
                dumped.append({"source": source, "others": others, "seen": [_plain(one) for one in seen]})
                for figure in Figures.__dataclass_fields__:
                    measured, guessed = getattr(real, figure), getattr(said, figure)
                    errors.setdefault(figure, []).append(guessed / measured - 1)
                    rows.append([number + 1, figure, measured, guessed, f"{errors[figure][-1]:+.1%}", f"{others:.1%}"])
                if arguments.dump is not None:
                    arguments.dump.write_text(json.dumps(dumped))
            columns = ("round", "figure", "real", "simulated", "error", "others took")
            print(Table(f"Reality and simulator: {source}", columns, rows).text())
            medians = {figure: statistics.median(values) for figure, values in errors.items()}
            print("medians: " + ", ".join(f"{figure} {error:+.1%}" for figure, error in medians.items()), flush=True)
            is_off |= any(abs(medians[figure]) > arguments.limit for figure in JUDGED)
    sys.exit(is_off)


def _plain(seen: Seen) -> list[float]:
    return [seen.arrived_s, seen.first_s, seen.ended_s, seen.num_output]


if __name__ == "__main__":
    main()
