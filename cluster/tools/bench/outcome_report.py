"""The outcome of a run as a report: tables and plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.cluster.tools.bench.bench_outcome import Outcome
from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.load.measures import STATISTICS, Measures
from slipstream.cluster.tools.report.plot import Mark, Plot, Series
from slipstream.cluster.tools.report.report import Report
from slipstream.cluster.tools.report.table import Cell, Table, number

MAX_TIMELINE = 4000  # points of a plot over time


def report_of(outcome: Outcome) -> Report:
    """A summary, a table of all levels if there are several, one of each, the errors, and plots."""
    parts: list[Table | Plot] = []
    if len(outcome.levels) > 1:
        parts.append(_sweep_table(outcome))
    parts += [_level_table(outcome, level) for level in outcome.levels]
    if outcome.by_model:
        rows = [[model, *_row(outcome, level)] for model, level in outcome.by_model]
        parts.append(Table("Models (times in ms)", ["model", *_columns(outcome)], rows))
    parts += [table for table in (_errors_table(outcome), outcome.compared) if table is not None]
    return Report(f"Benchmark of {outcome.model} at {outcome.url}", _summary(outcome), [*parts, *_plots(outcome)])


def _summary(outcome: Outcome) -> str:
    def sentence(level: Measures) -> str:
        rate = level.get("request_throughput")
        if rate is None:
            return f"{level.level.name}: no good answer"
        line = f"{number(rate)} requests/s, {number(level.get('output_token_throughput') or 0)} tokens/s"
        ttft, itl = level.get("time_to_first_token", "p50"), level.get("inter_token_latency", "p50")
        line += f", median TTFT {number(ttft)} ms" if ttft is not None else ""
        line += f", median ITL {number(itl)} ms" if itl is not None else ""
        share = level.get("good_request_share")
        line += f", goodput {number(level.get('goodput') or 0)}/s ({share:.1%})" if share is not None else ""
        return f"{level.level.name}: {line}"

    if outcome.slos and len(outcome.levels) > 1:
        best = max(outcome.levels, key=lambda level: level.get("goodput") or 0.0)
        first = f"Goodput is highest at {sentence(best)}."
    else:
        first = ". ".join(sentence(level) for level in outcome.levels[:3]) + "."
    return "\n\n".join([first, *outcome.notes])


def _level_table(outcome: Outcome, level: Measures) -> Table:
    rows: list[list[Cell]] = []
    for metric in level.metrics.values():
        name = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
        rows.append([name, *(metric.values.get(statistic) for statistic in STATISTICS)])
    note = f"goodput: answers within {outcome.slos}" if outcome.slos else ""
    return Table(f"Metrics, {level.level.name}", ("metric", *STATISTICS), rows, note)


def _sweep_table(outcome: Outcome) -> Table:
    rows = [_row(outcome, level) for level in outcome.levels]
    return Table("Sweep (times in ms)", _columns(outcome), rows)


def _columns(outcome: Outcome) -> list[str]:
    columns = ["level", "requests/s", "tokens/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "latency p99"]
    columns += ["goodput/s", "within SLOs"] if outcome.slos else []
    return [*columns, "errors"]


def _row(outcome: Outcome, level: Measures) -> list[Cell]:
    """A level, or the part of it that one model had, under `_columns`."""
    row: list[Cell] = [level.level.name, level.get("request_throughput"), level.get("output_token_throughput")]
    for name, statistic in (
        ("time_to_first_token", "p50"),
        ("time_to_first_token", "p99"),
        ("inter_token_latency", "p50"),
        ("inter_token_latency", "p99"),
        ("request_latency", "p99"),
    ):
        row.append(level.get(name, statistic))
    row += [level.get("goodput"), level.get("good_request_share")] if outcome.slos else []
    return [*row, int(level.get("error_count") or 0)]


def _errors_table(outcome: Outcome) -> Table | None:
    rows: list[list[Cell]] = [
        [level.level.name, kind, count, example]
        for level in outcome.levels
        for kind, (count, example) in level.errors.items()
    ]
    return Table("Errors", ("level", "kind", "count", "example"), rows) if rows else None


def _plots(outcome: Outcome) -> list[Plot]:
    plots = _sweep_plots(outcome) if len(outcome.levels) > 1 else []
    marks = outcome.slos.limits_ms
    kinds: list[tuple[str, str, Callable[[ClientAnswer], float | None]]] = [
        ("Time to first token", "time_to_first_token", lambda answer: answer.ttft_s),
        ("Inter-token latency", "inter_token_latency", lambda answer: answer.itl_s),
        ("Request latency", "request_latency", lambda answer: answer.latency_s),
    ]
    for title, name, get in kinds:
        series = [
            Series(run.level.name, [s * 1e3 for a in run.answers if a.is_good and (s := get(a)) is not None])
            for run in outcome.runs
        ]
        if any(one.xs for one in series):
            mark = [Mark(marks[name], f"SLO {marks[name]:g} ms", "x")] if name in marks else []
            plots.append(Plot(title, f"{title.lower()} (ms)", "share", series, "cdf", log_x=True, marks=mark))
    plots += _timelines(outcome)
    return plots


def _sweep_plots(outcome: Outcome) -> list[Plot]:
    def against_load(title: str, label: str, lines: Sequence[tuple[str, str, str]]) -> Plot:
        series = []
        for shown, name, statistic in lines:
            points = [
                (x, y)
                for level in outcome.levels
                if (x := level.get("request_throughput")) is not None and (y := level.get(name, statistic)) is not None
            ]
            series.append(Series(shown, [x for x, _ in points], [y for _, y in points]))
        return Plot(title, "request throughput (1/s)", label, series)

    ttft, itl = "time_to_first_token", "inter_token_latency"
    plots = [
        against_load("TTFT by load", "ms", [(p, ttft, p) for p in ("p50", "p90", "p99")]),
        against_load("ITL by load", "ms", [(p, itl, p) for p in ("p50", "p90", "p99")]),
    ]
    if outcome.slos:
        lines = [("all", "request_throughput", "avg"), ("within SLOs", "goodput", "avg")]
        plots.append(against_load("Goodput by load", "requests/s", lines))
    return plots


def _timelines(outcome: Outcome) -> list[Plot]:
    ttft, running = [], []
    for run in outcome.runs:
        good = [answer for answer in run.answers if answer.is_good and answer.first_s]
        step = len(good) // MAX_TIMELINE + 1
        shown = good[::step]
        times = [answer.begun_s - run.begun_s for answer in shown]
        ttft.append(Series(run.level.name, times, [(answer.ttft_s or 0.0) * 1e3 for answer in shown]))
        changes = sorted(
            [(answer.begun_s - run.begun_s, 1) for answer in run.answers]
            + [(answer.ended_s - run.begun_s, -1) for answer in run.answers]
        )
        level, counts = 0, []
        for _, change in changes:
            level += change
            counts.append(float(level))
        running.append(Series(run.level.name, [at_s for at_s, _ in changes], counts))
    return [
        Plot("TTFT over time", "time (s)", "time to first token (ms)", ttft, "points"),
        Plot("Requests under way", "time (s)", "requests", running, "step"),
    ]
