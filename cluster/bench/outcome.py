"""The outcome of a whole run as a report, as JSON and as CSV, and next to an earlier one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.cluster.bench.answer import Answer
from slipstream.cluster.bench.measures import STATISTICS, Measures
from slipstream.cluster.bench.run_level import LevelRun
from slipstream.cluster.bench.slo import Slos
from slipstream.cluster.bench.target import BenchError
from slipstream.cluster.report.plot import Mark, Plot, Series
from slipstream.cluster.report.report import Report
from slipstream.cluster.report.table import Cell, Table, number

FORMAT = "slipstream-bench/1"
MAX_TIMELINE = 4000
COMPARED = (
    ("time_to_first_token", "avg"),
    ("time_to_first_token", "p50"),
    ("time_to_first_token", "p99"),
    ("inter_token_latency", "avg"),
    ("inter_token_latency", "p99"),
    ("request_latency", "avg"),
    ("request_latency", "p99"),
    ("output_token_throughput", "avg"),
    ("request_throughput", "avg"),
    ("goodput", "avg"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All results of a run. `settings` are its options in words and plain values, `notes` what the reader should
    know."""

    url: str
    model: str
    settings: dict[str, Any]
    slos: Slos
    levels: Sequence[Measures]
    runs: Sequence[LevelRun]
    notes: Sequence[str] = ()
    compared: Table | None = None

    def json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "url": self.url,
            "model": self.model,
            "began": self.runs[0].unix_s if self.runs else None,
            "settings": self.settings,
            "goodput_slos_ms": dict(self.slos.limits_ms),
            "notes": list(self.notes),
            "levels": [level.json() for level in self.levels],
        }

    def csv(self) -> str:
        """The results as CSV, with a row for each level and metric."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["level", "metric", "unit", *STATISTICS])
        for level in self.levels:
            for metric in level.metrics.values():
                values = [metric.values.get(statistic, "") for statistic in STATISTICS]
                writer.writerow([level.level.name, metric.name, metric.unit, *values])
        return text.getvalue()

    def records(self) -> Iterator[str]:
        """One line of JSON for each request; times are in seconds from the beginning of its level."""
        for run in self.runs:
            for answer in run.answers:
                yield json.dumps({"level": run.level.name, **record_of(answer, run.begun_s)})

    def report(self) -> Report:
        parts: list[Table | Plot] = []
        if len(self.levels) > 1:
            parts.append(self._sweep())
        parts += [self._table(level) for level in self.levels]
        parts += [table for table in (self._errors(), self.compared) if table is not None]
        return Report(f"Benchmark of {self.model} at {self.url}", self._summary(), [*parts, *self._plots()])

    def _summary(self) -> str:
        def sentence(level: Measures) -> str:
            rate = level.get("request_throughput")
            if rate is None:
                return f"{level.level.name}: no good answer"
            told = f"{number(rate)} requests/s, {number(level.get('output_token_throughput') or 0)} tokens/s"
            ttft, itl = level.get("time_to_first_token", "p50"), level.get("inter_token_latency", "p50")
            told += f", median TTFT {number(ttft)} ms" if ttft is not None else ""
            told += f", median ITL {number(itl)} ms" if itl is not None else ""
            share = level.get("good_request_share")
            told += f", goodput {number(level.get('goodput') or 0)}/s ({share:.1%})" if share is not None else ""
            return f"{level.level.name}: {told}"

        if self.slos and len(self.levels) > 1:
            best = max(self.levels, key=lambda level: level.get("goodput") or 0.0)
            first = f"Goodput is highest at {sentence(best)}."
        else:
            first = ". ".join(sentence(level) for level in self.levels[:3]) + "."
        return "\n\n".join([first, *self.notes])

    def _table(self, level: Measures) -> Table:
        rows: list[list[Cell]] = []
        for metric in level.metrics.values():
            name = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
            rows.append([name, *(metric.values.get(statistic) for statistic in STATISTICS)])
        note = f"goodput: answers within {self.slos}" if self.slos else ""
        return Table(f"Metrics, {level.level.name}", ("metric", *STATISTICS), rows, note)

    def _sweep(self) -> Table:
        columns = ["level", "requests/s", "tokens/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "latency p99"]
        columns += ["goodput/s", "within SLOs"] if self.slos else []
        columns.append("errors")
        rows: list[list[Cell]] = []
        for level in self.levels:
            row: list[Cell] = [level.level.name, level.get("request_throughput"), level.get("output_token_throughput")]
            for name, statistic in (
                ("time_to_first_token", "p50"),
                ("time_to_first_token", "p99"),
                ("inter_token_latency", "p50"),
                ("inter_token_latency", "p99"),
                ("request_latency", "p99"),
            ):
                row.append(level.get(name, statistic))
            row += [level.get("goodput"), level.get("good_request_share")] if self.slos else []
            rows.append([*row, int(level.get("error_count") or 0)])
        return Table("Sweep (times in ms)", columns, rows)

    def _errors(self) -> Table | None:
        rows: list[list[Cell]] = [
            [level.level.name, kind, count, example]
            for level in self.levels
            for kind, (count, example) in level.errors.items()
        ]
        return Table("Errors", ("level", "kind", "count", "example"), rows) if rows else None

    def _plots(self) -> list[Plot]:
        plots = self._sweep_plots() if len(self.levels) > 1 else []
        marks = self.slos.limits_ms
        kinds: list[tuple[str, str, Callable[[Answer], float | None]]] = [
            ("Time to first token", "time_to_first_token", lambda answer: answer.ttft_s),
            ("Inter-token latency", "inter_token_latency", lambda answer: answer.itl_s),
            ("Request latency", "request_latency", lambda answer: answer.latency_s),
        ]
        for title, name, get in kinds:
            series = [
                Series(run.level.name, [s * 1e3 for a in run.answers if a.is_good and (s := get(a)) is not None])
                for run in self.runs
            ]
            if any(one.xs for one in series):
                mark = [Mark(marks[name], f"SLO {marks[name]:g} ms", "x")] if name in marks else []
                plots.append(Plot(title, f"{title.lower()} (ms)", "share", series, "cdf", log_x=True, marks=mark))
        plots += self._timelines()
        return plots

    def _sweep_plots(self) -> list[Plot]:
        def against_load(title: str, label: str, lines: Sequence[tuple[str, str, str]]) -> Plot:
            series = []
            for shown, name, statistic in lines:
                points = [
                    (x, y)
                    for level in self.levels
                    if (x := level.get("request_throughput")) is not None
                    and (y := level.get(name, statistic)) is not None
                ]
                series.append(Series(shown, [x for x, _ in points], [y for _, y in points]))
            return Plot(title, "request throughput (1/s)", label, series)

        ttft, itl = "time_to_first_token", "inter_token_latency"
        plots = [
            against_load("TTFT by load", "ms", [(p, ttft, p) for p in ("p50", "p90", "p99")]),
            against_load("ITL by load", "ms", [(p, itl, p) for p in ("p50", "p90", "p99")]),
        ]
        if self.slos:
            lines = [("all", "request_throughput", "avg"), ("within SLOs", "goodput", "avg")]
            plots.append(against_load("Goodput by load", "requests/s", lines))
        return plots

    def _timelines(self) -> list[Plot]:
        ttft, running = [], []
        for run in self.runs:
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


def record_of(answer: Answer, begun_s: float) -> dict[str, Any]:
    return {
        "begun_s": answer.begun_s - begun_s,
        "due_s": answer.due_s - begun_s if answer.due_s is not None else None,
        "ended_s": answer.ended_s - begun_s,
        "status": answer.status,
        "ttft_s": answer.ttft_s,
        "itl_s": answer.itl_s,
        "latency_s": answer.latency_s,
        "longest_gap_s": answer.longest_gap_s,
        "input_tokens": answer.num_prompt_tokens,
        "cached_tokens": answer.num_cached_tokens,
        "output_tokens": answer.num_tokens,
        "wanted_tokens": answer.wanted_tokens,
        "error_kind": answer.kind,
        "error": answer.error,
    }


def read_outcome(path: Path) -> dict[str, Any]:
    """Reads the JSON of an earlier run. Raises BenchError."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"--compare: {path}: {error}") from None
    if not isinstance(told, dict) or told.get("format") != FORMAT or not isinstance(told.get("levels"), list):
        raise BenchError(f"--compare: {path} is no result of `slipstream bench --json`")
    return told


def compared(earlier: dict[str, Any], levels: Sequence[Measures], path: Path) -> Table:
    """A table of two runs side by side: their levels of the same name, or the only ones of both."""
    before = {str(level.get("name")): level for level in earlier["levels"]}
    if len(before) == len(levels) == 1:
        before = {levels[0].level.name: next(iter(before.values()))}
    rows: list[list[Cell]] = []
    for level in levels:
        old = before.get(level.level.name, {}).get("metrics", {})
        for name, statistic in COMPARED:
            then, now = old.get(name, {}).get(statistic), level.get(name, statistic)
            if then is None or now is None:
                continue
            change = f"{now / then - 1:+.1%}" if then else "-"
            rows.append([level.level.name, f"{name} {statistic}", then, now, change])
    note = "" if rows else "No level of that run has the name of one of this run."
    return Table(f"Compared with {path}", ("level", "metric", "then", "now", "change"), rows, note)
