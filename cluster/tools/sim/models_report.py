"""The report on runs of several models: what each of them got, and all of them together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slipstream.cluster.planner.planner_decision import MoveWorker
from slipstream.cluster.tools.report.plot import Plot, Series
from slipstream.cluster.tools.report.report import Report
from slipstream.cluster.tools.report.table import Cell, Table
from slipstream.cluster.tools.sim.run_json import config_json, profile_json, run_json
from slipstream.cluster.tools.sim.run_result import RunResult
from slipstream.cluster.tools.sim.sim_config import SimConfig
from slipstream.cluster.tools.sim.sim_run import SimModel

MAX_SHOWN = 20  # runs
MAX_PLOTTED = 3

Run = Sequence[RunResult]  # of all models


def name_of(run: Run) -> str:
    return " + ".join(result.split.name for result in run)


def attainment_of(run: Run) -> float:
    """Share of the requests of all models that kept both levels."""
    return sum(result.outcomes.num_good for result in run) / max(sum(len(result.outcomes) for result in run), 1)


def mean_attainment_of(run: Run, models: Sequence[SimModel]) -> float:
    """The mean over the models, each by its weight and whatever its number of requests."""
    weights = [model.config.weight for model in models]
    return sum(one.attainment * weight for one, weight in zip(run, weights, strict=True)) / sum(weights)


def worker_hours_of(run: Run) -> float:
    return sum(result.paid_s for result in run) / 3600.0


def cost_of(run: Run) -> float | None:
    """None where some price is not known."""
    costs = [result.cost for result in run]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def cost_per_million_of(run: Run) -> float | None:
    """Of a million output tokens of requests that kept both levels."""
    cost, tokens = cost_of(run), sum(result.outcomes.num_good_tokens for result in run)
    return None if cost is None or not tokens else cost / tokens * 1e6


def num_moves_of(run: Run) -> int:
    """Workers that went from one model to another."""
    decisions = [decision for result in run for decision in result.decisions]
    return sum(isinstance(action, MoveWorker) for decision in decisions for action in decision.actions)


def models_report_of(config: SimConfig, models: Sequence[SimModel], runs: Sequence[Run]) -> Report:
    """At least one run. The best one comes first."""
    ranked = sorted(runs, key=lambda run: -mean_attainment_of(run, models))
    best = ranked[0]
    names = ", ".join(model.config.name for model in models)
    summary = (
        f"{sum(len(result.outcomes) for result in best):,} requests of {names}"
        f"{', workers moved by the planner' if config.planner.enabled else ''}. Best of {len(runs)}: {name_of(best)} "
        f"{best[0].policy} keeps {attainment_of(best):.1%} of all requests within their levels, "
        f"{mean_attainment_of(best, models):.1%} in the mean of the models by weight."
    )
    parts: list[Table | Plot] = [_whole(models, ranked), _by_model(ranked)]
    for run in ranked[:MAX_PLOTTED]:
        series = [
            Series(one.model, [s.at_s for s in one.samples], [s.num_prefill + s.num_decode for s in one.samples])
            for one in run
        ]
        parts.append(Plot(f"Workers, {name_of(run)} at the start", "seconds", "ready workers", series, "step"))
    if any(result.decisions for run in ranked for result in run):
        parts.append(_decisions(ranked[:MAX_PLOTTED]))
    return Report(f"Simulation of {names}", summary, parts)


def models_json(config: SimConfig, models: Sequence[SimModel], runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that the same seed gives again."""
    return {
        "config": config_json(config),
        "profiles": {model.config.name: profile_json(model.profile) for model in models},
        "runs": [
            {
                "name": name_of(run),
                "policy": run[0].policy,
                "attainment": attainment_of(run),
                "mean_attainment": mean_attainment_of(run, models),
                "goodput_rps": sum(result.goodput_rps for result in run),
                "worker_hours": worker_hours_of(run),
                "num_moves": num_moves_of(run),
                "cost": cost_of(run),
                "cost_per_million_tokens": cost_per_million_of(run),
                "models": {result.model: run_json(result) for result in run},
            }
            for run in runs
        ],
    }


def _whole(models: Sequence[SimModel], runs: Sequence[Run]) -> Table:
    has_price = any(cost_of(run) is not None for run in runs)
    columns = ["workers", "policy", "kept %", "mean of models %", "goodput req/s", "worker hours", "moves"]
    columns += ["cost", "cost per million tokens"] if has_price else []
    rows: list[list[Cell]] = []
    for run in runs[:MAX_SHOWN]:
        row: list[Cell] = [
            name_of(run),
            run[0].policy,
            100 * attainment_of(run),
            100 * mean_attainment_of(run, models),
            sum(result.goodput_rps for result in run),
            worker_hours_of(run),
            num_moves_of(run),
        ]
        rows.append(row + ([cost_of(run), cost_per_million_of(run)] if has_price else []))
    left = len(runs) - len(rows)
    note = "Kept: of the requests of all models. Mean: over the models, by weight. Moves: of workers between models."
    return Table("All models", tuple(columns), rows, note + (f" {left} more runs are worse." if left > 0 else ""))


def _by_model(runs: Sequence[Run]) -> Table:
    rows: list[list[Cell]] = []
    for run in runs[:MAX_SHOWN]:
        for result in run:
            outcomes = result.outcomes
            times: list[Cell] = [
                None if math.isnan(values[percent]) else values[percent]
                for values in (outcomes.percentiles_ms(outcomes.ttft_s), outcomes.percentiles_ms(outcomes.itl_s))
                for percent in (50, 99)
            ]
            good = [len(outcomes), result.goodput_rps, 100 * result.attainment]
            rows.append([name_of(run), result.model, *good, *times, result.paid_s / 3600.0, result.num_failed])
    columns = ("workers", "model", "requests", "goodput req/s", "kept %")
    times_of = ("TTFT p50 ms", "p99", "ITL p50 ms", "p99")
    return Table("Each model", (*columns, *times_of, "worker hours", "failed"), rows)


def _decisions(runs: Sequence[Run]) -> Table:
    rows: list[list[Cell]] = []
    for run in runs:
        made = sorted(
            ((decision, one.model) for one in run for decision in one.decisions if decision.actions),
            key=lambda pair: pair[0].at_s,
        )
        for decision, model in made:
            pools = f"{decision.num_prefill}P{decision.num_decode}D"
            rows.append([name_of(run), decision.at_s, model, pools, decision.why])
    return Table("What the planner did", ("run", "second", "model", "workers", "why"), rows)
