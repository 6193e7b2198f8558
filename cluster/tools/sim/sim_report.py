"""The report on runs: a table of all of them, the answer in a few sentences, plots, JSON that repeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from slipstream.cluster.tools.report.plot import Mark, Plot, Series
from slipstream.cluster.tools.report.report import Report
from slipstream.cluster.tools.report.table import Cell, Table
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.cluster.tools.sim.run_json import config_json, profile_json, run_json
from slipstream.cluster.tools.sim.run_result import RunResult, Sample
from slipstream.cluster.tools.sim.sim_config import SimConfig
from slipstream.cluster.tools.sim.sim_faults import Fault
from slipstream.cluster.tools.workload.workload import Workload

MAX_PLOTTED = 8  # runs in one plot
NUM_BINS = 60
MAX_POINTS = 2000  # of a distribution

COLUMNS = (
    *("workers", "policy", "goodput req/s", "kept SLO %", "TTFT p50 ms", "p90", "p99", "ITL p50 ms", "p90", "p99"),
    *("busy P %", "busy D %", "remote %", "cached %", "transfers", "GB", "moved", "preempted", "retries", "failed"),
)

SAMPLED: tuple[tuple[str, str, Callable[[Sample], float]], ...] = (
    ("Waiting requests", "requests", lambda sample: sample.num_waiting),
    ("Running requests", "requests", lambda sample: sample.num_running),
    ("Prefill workers computing", "share of their time", lambda sample: sample.busy_prefill),
    ("Decode workers computing", "share of their time", lambda sample: sample.busy_decode),
)


def report_of(config: SimConfig, profile: WorkerProfile, workload: Workload, results: Sequence[RunResult]) -> Report:
    """At least one result."""
    parts: list[Table | Plot] = [_table(results), _ends(results), *_plots(config, results)]
    if any(result.decisions for result in results):
        parts.append(_workers_over_time(results[:MAX_PLOTTED]))
        parts.append(_decisions(results))
    if any(result.faults for result in results):
        rows: list[list[Cell]] = [
            [r.name, fault.at_s, fault.kind, _where(fault)] for r in results for fault in r.faults
        ]
        parts.append(Table("Faults", ("run", "second", "what", "worker"), rows))
    return Report(f"Simulation of {workload.name}", _summary(config, profile, workload, results), parts)


def _summary(config: SimConfig, profile: WorkerProfile, workload: Workload, results: Sequence[RunResult]) -> str:
    best = max(results, key=lambda result: result.goodput_rps)
    span_s = best.outcomes.span_s
    summary = (
        f"{workload.num_requests:,} requests of {workload.name} at {workload.speed:g} times their speed "
        f"({workload.num_requests / max(span_s, 1e-9):.4g} a second for {span_s:.4g} s) on {profile.name}; levels: "
        f"TTFT {config.slo.ttft_ms:g} ms, ITL {config.slo.itl_ms:g} ms. "
        f"Best: {best.name} with {best.goodput_rps:.4g} requests a second within both levels "
        f"({100 * best.attainment:.1f}% of all)."
    )
    if best.num_too_long:
        summary += f" {too_long(best.num_too_long, len(best.outcomes), profile)}"
    colocated = [result for result in results if not result.split.num_prefill]
    apart = [result for result in results if result.split.num_prefill]
    if colocated and apart:
        one, other = (max(group, key=lambda result: result.goodput_rps) for group in (apart, colocated))
        gain = one.goodput_rps / max(other.goodput_rps, 1e-9) - 1
        summary += (
            f" Disaggregated ({one.name}) against colocated ({other.name}): {one.goodput_rps:.4g} to "
            f"{other.goodput_rps:.4g} requests a second, {100 * gain:+.1f}%."
        )
    return summary


def _plots(config: SimConfig, results: Sequence[RunResult]) -> list[Plot]:
    shown = results[:MAX_PLOTTED]
    plots = [
        Plot(
            "Goodput",
            "workers, policy",
            "requests a second within both levels",
            [Series("goodput", [result.name for result in results], [result.goodput_rps for result in results])],
            "bar",
        ),
        Plot(
            "Time to first token",
            "milliseconds",
            "share of requests",
            [Series(r.name, _sample_ms(r.outcomes.ttft_s)) for r in shown],
            "cdf",
            log_x=True,
            marks=(Mark(config.slo.ttft_ms, "level", "x"),),
        ),
        Plot(
            "Mean time between tokens",
            "milliseconds",
            "share of requests",
            [Series(r.name, _sample_ms(r.outcomes.itl_s)) for r in shown],
            "cdf",
            log_x=True,
            marks=(Mark(config.slo.itl_ms, "level", "x"),),
        ),
        _over_time("Goodput by time of arrival", "requests a second", shown),
    ]
    xs = [[sample.at_s for sample in result.samples] for result in shown]
    for title, label, of in SAMPLED:
        series = [
            Series(result.name, x, [of(sample) for sample in result.samples])
            for result, x in zip(shown, xs, strict=True)
        ]
        plots.append(Plot(title, "seconds", label, series))
    return plots


def too_long(count: int, num_requests: int, profile: WorkerProfile) -> str:
    """Why so many failed that no number of workers helps."""
    return (
        f"{count:,} of {num_requests:,} requests have a longer prompt than the {profile.max_model_len:,} tokens that "
        f"{profile.name} takes, and were refused."
    )


def as_json(config: SimConfig, profile: WorkerProfile, results: Sequence[RunResult]) -> dict[str, Any]:
    """Everything that the same seed gives again; what the simulation itself took is not in it."""
    return {
        "config": config_json(config),
        "profile": profile_json(profile),
        "runs": [run_json(result) for result in results],
    }


def cost_table(results: Sequence[RunResult]) -> Table:
    """What the simulation itself took."""
    rows: list[list[Cell]] = [
        [
            result.name,
            len(result.outcomes),
            result.simulated_s,
            result.cpu_s,
            len(result.outcomes) / max(result.cpu_s, 1e-9),
            result.num_events / max(len(result.outcomes), 1),
            result.rss_bytes / 2**20,
        ]
        for result in results
    ]
    columns = ("run", "requests", "simulated s", "CPU s", "requests/s", "events a request", "MiB at most so far")
    return Table("What the simulation took", columns, rows)


def _table(results: Sequence[RunResult]) -> Table:
    rows: list[list[Cell]] = []
    for result in results:
        outcomes = result.outcomes
        times = [
            None if math.isnan(value) else value
            for values in (outcomes.ttft_s, outcomes.itl_s)
            for value in outcomes.percentiles_ms(values).values()
        ]
        rows.append(
            [
                result.split.name,
                result.policy,
                result.goodput_rps,
                100 * result.attainment,
                *times,
                100 * result.utilisation("prefill") if result.worker_s.get("prefill") else None,
                100 * result.utilisation("decode"),
                100 * result.remote_share,
                100 * result.cached_share,
                result.num_transfers,
                result.transfer_bytes / 1e9,
                result.num_moves,
                result.num_preemptions,
                sum(result.retries.values()),
                result.num_failed,
            ]
        )
    note = "Busy: share of their time in which workers computed. Remote: placements with prefill on another worker."
    return Table("Runs", COLUMNS, rows, note)


def _ends(results: Sequence[RunResult]) -> Table:
    kinds = sorted({end for result in results for end in result.outcomes.ends})
    return Table(
        "How requests ended", ("run", *kinds), [[r.name, *(r.outcomes.ends[kind] for kind in kinds)] for r in results]
    )


def _over_time(title: str, label: str, results: Sequence[RunResult]) -> Plot:
    series: list[Series] = []
    for result in results:
        middles, good, offered = result.outcomes.good_by_time(NUM_BINS)
        if not series:
            series.append(Series("arrivals", middles, offered))
        series.append(Series(result.name, middles, good))
    return Plot(title, "seconds", label, series)


def _workers_over_time(results: Sequence[RunResult]) -> Plot:
    series = []
    for result in results:
        xs = [sample.at_s for sample in result.samples]
        series.append(Series(f"{result.name}: prefill", xs, [sample.num_prefill for sample in result.samples]))
        series.append(Series(f"{result.name}: decode", xs, [sample.num_decode for sample in result.samples]))
    return Plot("Workers", "seconds", "ready workers", series, "step")


def _decisions(results: Sequence[RunResult]) -> Table:
    rows: list[list[Cell]] = [
        [result.name, decision.at_s, decision.num_prefill, decision.num_decode, decision.why]
        for result in results
        for decision in result.decisions
    ]
    return Table("What the planner did", ("run", "second", "prefill", "decode", "why"), rows)


def _sample_ms(values: Sequence[float]) -> list[float]:
    """At most `MAX_POINTS` of them, evenly taken from all in order of size."""
    known = sorted(value * 1e3 for value in values if not math.isnan(value))
    if len(known) <= MAX_POINTS:
        return known
    step = (len(known) - 1) / (MAX_POINTS - 1)
    return [known[round(at * step)] for at in range(MAX_POINTS)]


def _where(fault: Fault) -> str:
    return f"{fault.worker} - {fault.other}" if fault.other else fault.worker
