"""`slipstream sim`: what a cluster would do with a workload."""

from __future__ import annotations

import gc
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from slipstream.cluster.planner.planner_loading import load_planner
from slipstream.cluster.planner.shared.shared_loading import load_shared_planner
from slipstream.cluster.terminal import console
from slipstream.cluster.tools.sim.hardware.hardware_profile import ProfileError
from slipstream.cluster.tools.sim.models_report import models_json, models_report_of
from slipstream.cluster.tools.sim.run_result import RunResult
from slipstream.cluster.tools.sim.sim_config import (
    POLICIES,
    FaultConfig,
    SimConfig,
    SimConfigError,
    load_sim_config,
)
from slipstream.cluster.tools.sim.sim_report import as_json, cost_table, report_of
from slipstream.cluster.tools.sim.sim_run import ModelsRun, SimModel, open_models
from slipstream.cluster.tools.workload.arrival import TraceError
from slipstream.router.config.router_config import SloConfig
from slipstream.router.process.gc_tuning import spare_garbage_collector

PROGRESS_EVERY_S = 0.5
GARBAGE_THRESHOLDS = (200_000, 20, 100)  # nothing in a run makes cycles that would have to be found soon


@click.command("sim")
@click.argument("config_file", metavar="[CONFIG]", required=False, type=click.Path(path_type=Path))
@click.option("--workload", help="A trace, a mix by name, or isl=2000,osl=200,rate=10 (docs/reference/workloads.md).")
@click.option("--requests", "-n", type=int, help="How many; a shorter trace is replayed.")
@click.option("--seconds", type=float, help="Only the requests of so many seconds.")
@click.option("--speed", type=float, help="Requests come so many times as fast.")
@click.option("--profile", help="What a worker is: a name from configs/profiles or a file.")
@click.option(
    "--split",
    "-s",
    "splits",
    multiple=True,
    help="P:D workers, or a number of colocated ones; of several models 1:3+4, or 'all 8'. Repeatable.",
)
@click.option("--policy", "-p", "policies", multiple=True, type=click.Choice(POLICIES), help="Repeatable.")
@click.option("--ttft-ms", type=float, help="The level for the time to first token.")
@click.option("--itl-ms", type=float, help="The level for the mean time between tokens.")
@click.option("--planner/--no-planner", default=None, help="The planner moves the workers.")
@click.option("--kills", type=int, help="So many workers die on the way.")
@click.option("--slow", type=int, help="So many become slow for a while.")
@click.option("--cuts", type=int, help="So many hosts are cut off from the others for a while.")
@click.option("--links", type=int, help="So many links between two hosts are cut for a while.")
@click.option("--page-tokens", type=int, help="The unit of pages and of the prefix cache.")
@click.option("--report-s", type=float, help="Workers tell so often how far answers are (default 2).")
@click.option("--seed", type=int)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write everything there.")
@click.option("--html", "html_file", type=click.Path(path_type=Path), help="Also write a page with plots there.")
@click.option("--quiet", "-q", is_flag=True, help="No progress line.")
def sim_command(
    config_file: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    quiet: bool,
    ttft_ms: float | None,
    itl_ms: float | None,
    planner: bool | None,
    kills: int | None,
    slow: int | None,
    cuts: int | None,
    links: int | None,
    **flags: Any,
) -> None:
    """Simulate a cluster: the production router under virtual time, with workers as a profile says.

    Each policy is run with each split. The same seed gives the same result.
    """
    given = {key: value for key, value in flags.items() if value not in (None, ())}
    try:
        config = load_sim_config(config_file, given)
        slo = SloConfig(
            config.slo.ttft_ms if ttft_ms is None else ttft_ms, config.slo.itl_ms if itl_ms is None else itl_ms
        )
        faults = _faults(config.faults, kills=kills, slow=slow, cuts=cuts, links=links)
        enabled = config.planner.enabled if planner is None else planner
        config = replace(config, slo=slo, faults=faults, planner=replace(config.planner, enabled=enabled))
        models = open_models(config)
        if enabled:
            _check_planner(config, models, config_file)
    except (SimConfigError, ProfileError, TraceError, ValueError) as error:
        console.error(str(error))
        sys.exit(2)
    runs = _run_all(config, models, quiet)
    if config.models:
        report, plain = models_report_of(config, models, runs), models_json(config, models, runs)
    else:
        profile, results = models[0].profile, [results[0] for results in runs]
        report, plain = report_of(config, profile, models[0].workload, results), as_json(config, profile, results)
    click.echo(report.text(_width()))
    click.echo(cost_table([results[0] for results in runs]).text(_width()))
    try:
        if json_file is not None:
            json_file.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
        if html_file is not None:
            html_file.write_text(report.html(), encoding="utf-8")
    except OSError as error:
        console.error(f"{error.filename}: {error.strerror}")
        sys.exit(1)


def _check_planner(config: SimConfig, models: Sequence[SimModel], config_file: Path | None) -> None:
    """Raises SimConfigError if the class that it names cannot be had, or prices are missing."""
    try:
        if config.models:
            load_shared_planner(config.planner, [model.share for model in models], config.budget)
        else:
            load_planner(config.planner, models[0].prices)
    except ValueError as error:
        where = f"{config_file}: " if config_file is not None else ""
        raise SimConfigError(f"{where}planner.{error}") from error


def _faults(faults: FaultConfig, **counts: int | None) -> FaultConfig:
    return replace(faults, **{key: count for key, count in counts.items() if count is not None})


def _run_all(config: SimConfig, models: Sequence[SimModel], quiet: bool) -> list[list[RunResult]]:
    """The results of all models in each run."""
    spare_garbage_collector()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    run = ModelsRun(config, models, max(model.workload.last_s for model in models))
    num_requests = sum(len(model.workload) for model in models)
    results = []
    for splits in config.divisions():
        name = " + ".join(split.name for split in splits)
        for policy in config.policies:
            line = None if quiet else _ProgressLine(f"{name} {policy}", num_requests)
            results.append(run.run(policy, splits, None if line is None else line.show))
            if line is not None:
                line.close()
    return results


class _ProgressLine:
    """One line on stderr, where that is a terminal."""

    def __init__(self, name: str, num_requests: int) -> None:
        self._name, self._num_requests = name, num_requests
        self._began_s = time.monotonic()
        self._next_s = 0.0
        self._is_on = sys.stderr.isatty()

    def show(self, num_ended: int, simulated_s: float) -> None:
        now_s = time.monotonic()
        if self._is_on and now_s >= self._next_s:
            self._next_s = now_s + PROGRESS_EVERY_S
            pace = num_ended / max(now_s - self._began_s, 1e-9)
            left_s = (self._num_requests - num_ended) / pace if pace else 0.0
            share = 100 * num_ended / self._num_requests
            text = (
                f"{self._name}: {share:.0f}%, {simulated_s:.0f} s simulated, {pace:.0f} requests/s, {left_s:.0f} s left"
            )
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    def close(self) -> None:
        if self._is_on:
            click.echo("\r\x1b[K", nl=False, err=True)


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
