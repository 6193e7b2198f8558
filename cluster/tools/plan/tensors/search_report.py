"""The outcome of a search as a report and as JSON."""

from __future__ import annotations

import math
from typing import Any

from slipstream.cluster.tools.plan.tensors.measured_search import SearchOutcome
from slipstream.cluster.tools.plan.tensors.setting_trial import SettingTrial, TrialPoint
from slipstream.cluster.tools.plan.tensors.tensor_settings import TensorSettings
from slipstream.cluster.tools.report.report import Report
from slipstream.cluster.tools.report.table import Cell, Table, number

COLUMNS = (
    *("instances", "batch", "preferred", "delay us", "clients", "requests/s", "p50", "p99", "rows"),
    *("queue", "compute", "verdict"),
)


def search_report(model: str, latency_ms: float, outcome: SearchOutcome) -> Report:
    rows, best = [], outcome.trials[0]
    for trial in outcome.trials:
        said = verdict_on(trial, best, is_first=trial is outcome.trials[0])
        if trial.is_better_than(best):
            best = trial
        rows.append(row_of(trial, said))
    note = (
        "Each setting is shown with the number of clients at which it served most within the limit. Times are in ms; "
        "rows are those of an execution; queue and compute are the server's means."
    )
    tables = [Table("Settings in the order of the search", COLUMNS, rows, note)]
    if outcome.best is not outcome.present:
        said = "recommended" if outcome.is_gain else "no gain"
        again = [row_of(outcome.present, "present"), row_of(outcome.best, said)]
        tables.append(Table("Both again, in turns", COLUMNS, again))
    return Report(f"Plan for {model}, p99 of at most {latency_ms:g} ms", summary_of(latency_ms, outcome), tables)


def summary_of(latency_ms: float, outcome: SearchOutcome) -> str:
    present, best = outcome.present, outcome.best
    ended = "" if outcome.is_complete else "\n\nThe time was up before the search was done; --seconds gives it more."
    if not best.is_within and not present.is_within:
        reached = f"{number(best.best.p99_ms)} ms" if best.best is not None else "nothing"
        return f"No setting kept a p99 of {latency_ms:g} ms; the best reached {reached} with {best.settings}.{ended}"
    if not outcome.is_gain:
        return f"Keep what there is: {present.settings} ({number(present.requests_s)} requests/s).{ended}"
    before = f"{number(present.requests_s)}" if present.is_within else "none within the limit"
    gain = f", {best.requests_s / present.requests_s - 1:+.0%}" if present.requests_s else ""
    return (
        f"Use {best.settings}: {number(best.requests_s)} requests/s within the limit, where {present.settings} serves "
        f"{before}{gain}.{ended}"
    )


def verdict_on(trial: SettingTrial, best: SettingTrial, *, is_first: bool) -> str:
    """Against the best one before it."""
    if trial.failure:
        return f"does not load: {trial.failure}"
    if is_first:
        return "present" if trial.is_within else "present, p99 over the limit"
    if trial.is_better_than(best):
        gain = f" {trial.requests_s / best.requests_s - 1:+.0%}" if best.requests_s and trial.is_within else ""
        return f"better{gain}"
    return "no gain" if trial.is_within else "p99 over the limit"


def row_of(trial: SettingTrial, verdict: str) -> list[Cell]:
    settings, point = trial.settings, trial.best
    preferred = ", ".join(map(str, settings.preferred)) or None
    row: list[Cell] = [settings.instances, settings.max_batch_size or None, preferred, settings.delay_us]
    if point is None:
        return [*row, *(None for _ in range(len(COLUMNS) - len(row) - 1)), verdict]
    row += [point.concurrency, point.requests_s, point.p50_ms, point.p99_ms, point.counts.rows_a_batch]
    return [*row, point.counts.mean_ms("queue"), point.counts.mean_ms("compute_infer"), verdict]


def search_json(model: str, latency_ms: float, outcome: SearchOutcome) -> dict[str, Any]:
    return {
        "model": model,
        "latency_ms": latency_ms,
        "is_complete": outcome.is_complete,
        "present": trial_json(outcome.present),
        "best": trial_json(outcome.best),
        "trials": [trial_json(trial) for trial in outcome.trials],
    }


def trial_json(trial: SettingTrial) -> dict[str, Any]:
    points = [point_json(point) for point in trial.points]
    within = {"is_within": trial.is_within, "requests_s": trial.requests_s, "failure": trial.failure}
    return settings_json(trial.settings) | within | {"points": points}


def settings_json(settings: TensorSettings) -> dict[str, Any]:
    return {
        "instances": settings.instances,
        "max_batch_size": settings.max_batch_size,
        "preferred_batch_size": list(settings.preferred),
        "max_queue_delay_microseconds": settings.delay_us,
    }


def point_json(point: TrialPoint) -> dict[str, Any]:
    measured = {"clients": point.concurrency, "requests_s": point.requests_s, "errors": point.num_errors}
    times = {"p50_ms": point.p50_ms, "p99_ms": point.p99_ms} if math.isfinite(point.p99_ms) else {}
    return measured | times | {"server": point.counts.json()}
