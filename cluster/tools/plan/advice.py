"""Presents the answer, whether to disaggregate and how, in words, tables and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from slipstream.cluster.tools.plan.candidate import DeploymentCandidate, devices
from slipstream.cluster.tools.plan.search import RankedCandidate, SearchResult
from slipstream.cluster.tools.plan.trial import CandidateTrial, GoodputEstimate, PlanGoal, estimate
from slipstream.cluster.tools.report.plot import Mark, Plot, Series
from slipstream.cluster.tools.report.report import Report
from slipstream.cluster.tools.report.table import Cell, Table, number
from slipstream.cluster.tools.sim.sim_report import too_long

MAX_SHOWN = 24  # candidates in the table, MAX_BARS of them in the plot
MAX_BARS = 10
WORTH_TELLING = 0.02  # as a share of all requests
OVERLOADED = 0.5


def verdict(found: SearchResult) -> str:
    """The recommendation in one sentence that can be acted upon."""
    best, gain = found.best, found.gain_rps
    if found.by_cost and found.apart is not None and best.cost_per_million is not None:
        other = found.colocated if best is found.apart else found.apart
        return (
            f"Cheapest: {described(best.candidate)}, {number(best.cost_per_million)} for a million output tokens "
            f"within the levels ({best.attainment:.1%} of all requests keep them); {described(other.candidate)} "
            f"{number(other.cost_per_million or float('inf'))} ({other.attainment:.1%})."
        )
    if found.apart is None or gain is None:
        return f"There is nothing to separate with so few workers: serve {described(best.candidate)}."
    base = found.colocated.goodput.mean
    if best is found.apart:
        return (
            f"Yes, disaggregate: {described(best.candidate)} serve {spoken(best.goodput)} requests/s within the "
            f"levels, the same hardware colocated {spoken(found.colocated.goodput)} ({change(gain, base)})."
        )
    if gain.high < 0:
        return (
            f"No, do not disaggregate: {described(best.candidate)} serve {spoken(best.goodput)} requests/s within the "
            f"levels, the best split ({found.apart.candidate.name}) {spoken(found.apart.goodput)} "
            f"({change(gain, base)})."
        )
    return (
        f"It makes no difference that is significant, so keep it simple: {described(best.candidate)} serve "
        f"{spoken(best.goodput)} requests/s within the levels, the best split ({found.apart.candidate.name}) "
        f"{spoken(found.apart.goodput)} ({change(gain, base)})."
    )


def report_of(
    question: PlanGoal,
    found: SearchResult,
    target: float | None,
    loads: Sequence[tuple[float, Sequence[CandidateTrial]]],
) -> Report:
    """The whole report. `loads` are trials of the finalists at other speeds."""
    offered = found.best.trials[0].offered_rps
    enough = ""
    if target is None and found.best.attainment < OVERLOADED:
        enough = f" But {plural(found.num_devices, 'device')} are too few: most requests miss a level either way."
    if target is not None:
        kept = f"{found.best.attainment:.1%} of all requests are within the levels"
        enough = (
            f" These are the fewest that keep them for {target:.0%}: {kept}."
            if found.is_enough
            else f" Even so {kept}, less than the {target:.0%} that were asked for: take more workers."
        )
    about = (
        f"{question.num_requests:,} requests of {question.workload} ({number(offered)} a second), TTFT up to "
        f"{question.slo.ttft_ms:g} ms and ITL up to {question.slo.itl_ms:g} ms, simulated with the router that would "
        f"serve them and {found.best.candidate.decode.name}: {found.best.candidate.decode.source}."
    )
    if num_too_long := found.best.trials[0].num_too_long:
        about += f" {too_long(num_too_long, question.num_requests, found.best.candidate.decode)}"
    more = elsewhere(found, loads)
    parts: list[Table | Plot] = [finalists_table(found), tried_table(found.tried), bars(found)]
    if loads:
        parts.append(load_plot(loads))
    return Report("Should I disaggregate, and how?", f"{verdict(found)}{enough}{more}\n\n{about}", parts)


def as_json(question: PlanGoal, found: SearchResult, target: float | None) -> dict[str, Any]:
    def of(finalist: RankedCandidate | None) -> dict[str, Any] | None:
        if finalist is None:
            return None
        best = finalist.candidate
        return {
            "name": best.name,
            "num_prefill": best.split.num_prefill,
            "num_decode": best.split.num_decode,
            "prefill_profile": best.prefill.name,
            "decode_profile": best.decode.name,
            "chunk_tokens": best.chunk,
            "policy": best.policy,
            "num_devices": best.num_devices,
            "goodput_rps": asdict(finalist.goodput),
            "attainment": finalist.attainment,
            **({} if finalist.cost_per_million is None else {"cost_per_million_tokens": finalist.cost_per_million}),
        }

    return {
        "question": asdict(question),
        "target": target,
        "verdict": verdict(found),
        "disaggregate": found.best is found.apart,
        "is_enough": found.is_enough,
        "recommended": of(found.best),
        "colocated": of(found.colocated),
        "disaggregated": of(found.apart),
        "gain_rps": asdict(found.gain_rps) if found.gain_rps is not None else None,
        "tried": [
            {"name": trial.candidate.name, "goodput_rps": trial.goodput_rps, "attainment": trial.attainment}
            for trial in found.tried
        ],
    }


def elsewhere(found: SearchResult, loads: Sequence[tuple[float, Sequence[CandidateTrial]]]) -> str:
    """One sentence on the higher load at which the finalists differ most, because load may grow."""
    if found.apart is None:
        return ""
    more = [trials for speed, trials in loads if speed > 1]
    apart, colocated = max(
        more, key=lambda trials: abs(trials[0].attainment - trials[1].attainment), default=(None, None)
    )
    if apart is None or colocated is None or abs(apart.attainment - colocated.attainment) < WORTH_TELLING:
        return ""
    return (
        f" With {number(apart.offered_rps)} requests/s, {apart.candidate.name} keep {apart.attainment:.0%} within the "
        f"levels and {colocated.candidate.name} {colocated.attainment:.0%}."
    )


def finalists_table(found: SearchResult) -> Table:
    has_price = found.best.cost_per_million is not None
    rows: list[list[Cell]] = []
    for finalist in (found.apart, found.colocated):
        if finalist is None:
            continue
        good, first = finalist.goodput, finalist.trials[0]
        rows.append(
            [
                ("* " if finalist is found.best else "  ") + finalist.candidate.name,
                finalist.candidate.num_devices,
                good.mean,
                good.low,
                good.high,
                100 * finalist.attainment,
                first.ttft_p50_ms,
                first.ttft_p99_ms,
                first.itl_p50_ms,
                first.itl_p99_ms,
                100 * first.remote_share,
                *([finalist.cost_per_million] if has_price else []),
            ]
        )
    columns = ("workers", "devices", "goodput/s", "low", "high", "kept %")
    columns += ("TTFT p50 ms", "p99", "ITL p50 ms", "p99", "remote %")  # type: ignore[assignment]
    columns += ("cost per million tokens",) if has_price else ()  # type: ignore[assignment]
    note = f"Low and high: the 95% interval, over {len(found.best.trials)} seeds. *: recommended."
    return Table("The best of each kind", columns, rows, note)


def tried_table(tried: Sequence[CandidateTrial]) -> Table:
    best_first = sorted(tried, key=lambda trial: -trial.goodput_rps)
    rows: list[list[Cell]] = [
        [
            trial.candidate.name,
            trial.candidate.num_devices,
            trial.candidate.chunk,
            trial.candidate.policy,
            trial.goodput_rps,
            100 * trial.attainment,
            trial.ttft_p99_ms,
            trial.itl_p99_ms,
            trial.num_failed,
        ]
        for trial in best_first[:MAX_SHOWN]
    ]
    columns = ("workers", "devices", "chunk", "policy", "goodput/s", "kept %", "TTFT p99 ms", "ITL p99 ms", "failed")
    left = len(tried) - len(rows)
    return Table("What was tried, one seed each", columns, rows, f"{left} more are worse." if left > 0 else "")


def bars(found: SearchResult) -> Plot:
    finals = {one.candidate: one for one in (found.apart, found.colocated) if one is not None}
    shown = sorted(found.tried, key=lambda trial: -trial.goodput_rps)[:MAX_BARS]
    shown += [one.trials[0] for one in finals.values() if one.trials[0] not in shown]
    estimates = [
        finals[trial.candidate].goodput if trial.candidate in finals else estimate(trial.good_rps) for trial in shown
    ]
    series = Series(
        "",
        [trial.candidate.name for trial in shown],
        [one.mean for one in estimates],
        [one.low for one in estimates],
        [one.high for one in estimates],
    )
    mark = Mark(found.best.trials[0].offered_rps, "all requests")
    return Plot("Goodput", "workers", "requests/s within the levels", [series], "bar", marks=[mark])


def load_plot(loads: Sequence[tuple[float, Sequence[CandidateTrial]]]) -> Plot:
    """A plot of how the finalists do at more and at less load."""
    names = [trial.candidate.name for trial in loads[0][1]]
    series = [
        Series(
            name,
            [trials[index].offered_rps for _, trials in loads],
            [100 * trials[index].attainment for _, trials in loads],
        )
        for index, name in enumerate(names)
    ]
    return Plot("At other loads", "requests/s that come", "% within the levels", series)


def described(candidate: DeploymentCandidate) -> str:
    """A candidate in words."""
    split = candidate.split
    tp = [f" with TP {devices(one)}" if devices(one) > 1 else "" for one in (candidate.prefill, candidate.decode)]
    policy = f", policy {candidate.policy}" if candidate.policy != "slo" else ""
    chunk = f", in steps of up to {candidate.chunk} tokens" if candidate.chunk_tokens is not None else ""
    if candidate.is_colocated:
        return f"{plural(split.num_decode, 'colocated worker')}{tp[1]}{chunk}{policy}"
    return (
        f"{plural(split.num_prefill, 'prefill worker')}{tp[0]} and {plural(split.num_decode, 'decode worker')}{tp[1]}"
        f"{chunk}{policy}"
    )


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def spoken(value: GoodputEstimate) -> str:
    """`41.20 (39.80 to 42.60)`."""
    return f"{number(value.mean)} ({number(value.low)} to {number(value.high)})"


def change(gain: GoodputEstimate, base: float) -> str:
    """A gain relative to `base`; or in requests per second, if `base` is 0."""
    if base <= 0:
        return f"{number(gain.mean)} requests/s more, {number(gain.low)} to {number(gain.high)}"
    return f"{gain.mean / base:+.0%}, between {gain.low / base:+.0%} and {gain.high / base:+.0%}"
