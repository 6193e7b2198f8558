"""The command `slipstream plan`."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from pathlib import Path

import click

from slipstream.cluster.terminal import console
from slipstream.cluster.tools.plan.advice import as_json, report_of, verdict
from slipstream.cluster.tools.plan.candidate import DeploymentCandidate
from slipstream.cluster.tools.plan.planned_config import PlanError, base_of, deployment, write_deployment
from slipstream.cluster.tools.plan.search import Search, SearchResult
from slipstream.cluster.tools.plan.tensor_plan import IN_PLACE, TensorPlanGoal, run_tensor_plan
from slipstream.cluster.tools.plan.trial import CandidateTrial, PlanGoal, simulate
from slipstream.cluster.tools.sim.hardware.hardware_profile import ProfileError
from slipstream.cluster.tools.sim.sim_config import MAX_WORKERS, POLICIES
from slipstream.cluster.tools.sim.sim_run import find_profile
from slipstream.cluster.tools.workload.arrival import TraceError
from slipstream.router.config.router_config import PolicyName, SloConfig
from slipstream.router.process.gc_tuning import spare_garbage_collector

SPEEDS = (0.5, 0.75, 1.25, 1.5, 2.0)  # of the workload, at which the finalists are simulated, too
DEFAULT_POLICIES: tuple[PolicyName, ...] = ("slo", "kv")
EXISTING = click.Path(exists=True, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)


@click.command("plan")
@click.option(
    "--profile", "profiles", multiple=True, metavar="NAME|FILE", help="Profile of a worker; repeat it for several TPs."
)
@click.option("--workload", default="mixed", show_default=True, help="A trace, a mix, or isl=2000,osl=200,rate=10.")
@click.option(
    "--requests",
    "-n",
    type=click.IntRange(20),
    default=1000,
    show_default=True,
    help="How many requests to simulate each time.",
)
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=1.0, help="Speed of the workload.")
@click.option("--ttft-ms", type=click.FloatRange(0, min_open=True), default=500.0, show_default=True)
@click.option("--itl-ms", type=click.FloatRange(0, min_open=True), default=50.0, show_default=True)
@click.option("--devices", type=click.IntRange(1, MAX_WORKERS), help="Find the best use of so many GPUs (or workers).")
@click.option(
    "--target",
    type=click.FloatRange(0, 1),
    default=0.95,
    show_default=True,
    help="Without --devices: the share of requests to serve well.",
)
@click.option("--max-devices", type=click.IntRange(1, MAX_WORKERS), default=64, show_default=True)
@click.option("--policy", "policies", multiple=True, type=click.Choice(POLICIES), help="[default: slo, kv]")
@click.option(
    "--objective",
    type=click.Choice(("goodput", "cost")),
    default="goodput",
    show_default=True,
    help="Cost: of what keeps the levels for --target, the cheapest for its tokens, by price_per_hour of the profiles.",
)
@click.option("--seeds", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--seed", type=int, default=0)
@click.option("--config", type=EXISTING, help="A deployment to change, for --write.")
@click.option("--model", metavar="DIR|NAME", help="The model's directory, for --write; or of --repository its name.")
@click.option(
    "--write",
    "write_file",
    type=OUTPUT,
    is_flag=False,
    flag_value="-",
    help="Write the recommended deployment, or config.pbtxt, to this file. With --repository alone: in place.",
)
@click.option("--repository", type=EXISTING, help="Plan a tensor model of this repository, by measuring it here.")
@click.option("--latency-ms", type=click.FloatRange(0, min_open=True), help="Of --repository: the limit of the p99.")
@click.option(
    "--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="Of --repository: to search."
)
@click.option("--max-instances", type=click.IntRange(1), help="Of --repository. [default: twice the cores]")
@click.option("--max-batch-size", type=click.IntRange(1), help="Of --repository. [default: that of the model]")
@click.option("--input", "input_file", type=EXISTING, help="Of --repository: data, as for `slipstream bench`.")
@click.option("--shape", "shapes", multiple=True, metavar="INPUT:SIZE,...", help="Of --repository: of an input.")
@click.option("--json", "json_file", type=OUTPUT)
@click.option("--html", "html_file", type=OUTPUT, help="A page with plots.")
def plan_command(
    profiles: tuple[str, ...],
    workload: str,
    requests: int,
    speed: float,
    ttft_ms: float,
    itl_ms: float,
    devices: int | None,
    target: float,
    max_devices: int,
    policies: tuple[PolicyName, ...],
    objective: str,
    seeds: int,
    seed: int,
    config: Path | None,
    model: str | None,
    write_file: Path | None,
    repository: Path | None,
    latency_ms: float | None,
    seconds: float,
    max_instances: int | None,
    max_batch_size: int | None,
    input_file: Path | None,
    shapes: tuple[str, ...],
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Should I disaggregate, and how?

    Simulates the workload on colocated and on separate workers of a profile (`slipstream bench --profile` measures
    one), and recommends what serves most requests within the levels or, without --devices, the fewest devices that do.

    With --repository, --model and --latency-ms: measures a tensor model with different instances and batching, and
    recommends what serves most requests with a p99 below the limit.
    """
    try:
        if repository is not None:
            if model is None or latency_ms is None:
                raise PlanError("--repository needs --model NAME and --latency-ms MS")
            of_batches = (max_instances, max_batch_size, input_file, shapes)
            goal = TensorPlanGoal(repository, model, latency_ms, seconds, *of_batches)
            run_tensor_plan(goal, write_file, json_file, shutil.get_terminal_size((120, 24)).columns)
            return
        if write_file == IN_PLACE:
            raise PlanError("--write needs a file")
        if not 0 <= target <= 1:  # also catches NaN, which click's range lets pass
            raise PlanError(f"--target must be 0 to 1, got {target}")
        base = base_of(config, directory_of(model)) if write_file is not None else {}
        known = [find_profile(name) for name in profiles or ("h200-llama-8b",)]
        question = PlanGoal(workload, SloConfig(ttft_ms, itl_ms), requests, speed, seed)
        counter = Counter(question)
        by_cost = target if objective == "cost" else None
        for profile in known:
            if by_cost is not None and profile.price_per_hour is None:
                raise PlanError(f"--objective cost needs price_per_hour in the profile {profile.name}")
        search = Search(counter.simulate, known, policies or DEFAULT_POLICIES, seeds, by_cost)
        most = devices if devices is not None else max_devices
        if most < search.min_devices:
            raise PlanError(f"a worker of {known[0].name} needs {search.min_devices} devices, and there are {most}")
        spare_garbage_collector()
        found = search.at(devices, target) if devices is not None else search.fewest(target, max_devices)
        loads = at_other_loads(counter, found)
        counter.close()
        wanted = target if devices is None else None
        report = report_of(question, found, wanted, loads)
        click.echo(report.text(shutil.get_terminal_size((120, 24)).columns), nl=False)
        if json_file is not None:
            json_file.write_text(json.dumps(as_json(question, found, wanted), indent=1) + "\n", encoding="utf-8")
        if html_file is not None:
            html_file.write_text(report.html(), encoding="utf-8")
        if write_file is not None:
            best = found.best.candidate
            heading = "Written by slipstream plan.\n" + textwrap.fill(verdict(found), 110)
            write_deployment(write_file, deployment(best, question.slo, base, best.decode.gpus > 0), heading)
            click.echo(f"\nwritten to {write_file}: slipstream serve {write_file}")
    except (PlanError, ProfileError, TraceError, ValueError) as error:
        console.error(str(error))
        sys.exit(2)
    except OSError as error:
        console.error(f"{error.filename}: {error.strerror}")
        sys.exit(2)


def directory_of(model: str | None) -> Path | None:
    """Raises PlanError."""
    if model is not None and not Path(model).exists():
        raise PlanError(f"--model: {model} does not exist")
    return Path(model) if model is not None else None


class Counter:
    """Simulates, and shows at a terminal how many times it has."""

    def __init__(self, question: PlanGoal) -> None:
        self._question = question
        self._num_done = 0
        self._began_s = time.monotonic()
        self._is_on = sys.stderr.isatty()

    def simulate(self, candidate: DeploymentCandidate, seed: int, speed: float = 1.0) -> CandidateTrial:
        if self._is_on:
            passed_s = time.monotonic() - self._began_s
            text = f"{self._num_done} simulated in {passed_s:.0f} s; {candidate.num_devices} devices, {candidate.name}"
            click.echo(f"\r\x1b[K{text[:100]}", nl=False, err=True)
        self._num_done += 1
        return simulate(self._question, candidate, seed, speed)

    def close(self) -> None:
        if self._is_on:
            click.echo("\r\x1b[K", nl=False, err=True)


def at_other_loads(counter: Counter, found: SearchResult) -> list[tuple[float, list[CandidateTrial]]]:
    finalists = [one for one in (found.apart, found.colocated) if one is not None]
    loads = [(speed, [counter.simulate(one.candidate, 0, speed) for one in finalists]) for speed in SPEEDS]
    return sorted([*loads, (1.0, [one.trials[0] for one in finalists])], key=lambda load: load[0])
