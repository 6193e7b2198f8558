"""The outcome of a benchmark of a tensor model, as JSON, CSV and a report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.cluster.tools.bench.load.answer_slos import Slos
from slipstream.cluster.tools.bench.load.measures import FORMAT, Measures
from slipstream.cluster.tools.bench.load.measures_csv import csv_of
from slipstream.cluster.tools.bench.tensors.server_counts import STAGES
from slipstream.cluster.tools.bench.tensors.tensor_levels import TensorRun
from slipstream.cluster.tools.report.plot import Plot, Series
from slipstream.cluster.tools.report.report import Report
from slipstream.cluster.tools.report.table import Cell, Table, number

PERCENTILES = ("p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class TensorOutcome:
    """`levels` are the measures of `runs`, one each. `place` is the URL or the repository."""

    place: str
    model: str
    settings: dict[str, Any]
    slos: Slos
    runs: Sequence[TensorRun]
    levels: Sequence[Measures]
    compared: Table | None = None

    def json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "url": self.place,
            "model": self.model,
            "began": self.runs[0].run.unix_s,
            "settings": self.settings,
            "goodput_slos_ms": dict(self.slos.limits_ms),
            "levels": [
                level.json() | {"server": {name: counts.json() for name, counts in run.counts.items()}}
                for run, level in zip(self.runs, self.levels, strict=True)
            ],
        }

    def csv(self) -> str:
        return csv_of(self.levels)

    def records(self) -> Iterator[str]:
        """One line of JSON for each request; times are in seconds from the beginning of its level."""
        for one in self.runs:
            for answer in one.run.answers:
                yield json.dumps(
                    {
                        "level": one.run.level.name,
                        "begun_s": answer.begun_s - one.run.begun_s,
                        "ended_s": answer.ended_s - one.run.begun_s,
                        "latency_s": answer.latency_s,
                        "responses": answer.num_chunks,
                        "error_kind": answer.kind,
                        "error": answer.error,
                    }
                )

    def report(self) -> Report:
        parts: list[Table | Plot] = [self._levels_table(), self._server_table()]
        parts += [table for table in (self._errors_table(), self.compared) if table is not None]
        if len(self.levels) > 1:
            parts.append(self._plot())
        return Report(f"Benchmark of {self.model} at {self.place}", self._summary(), parts)

    def _summary(self) -> str:
        good = [level for level in self.levels if level.get("request_throughput") is not None]
        notes = [f"{one.run.level.name} broke off: {one.run.broke_off}" for one in self.runs if one.run.broke_off]
        if any(one.run.was_interrupted for one in self.runs):
            notes.append("Interrupted: what had ended by then.")
        if not good:
            return "\n\n".join(["No answer was good.", *notes])
        best = max(good, key=lambda level: level.get("request_throughput") or 0.0)
        rate, p99 = best.get("request_throughput") or 0.0, best.get("request_latency", "p99") or 0.0
        first = f"Throughput is highest at {best.level.name}: {number(rate)} requests/s, p99 {number(p99)} ms."
        return "\n\n".join([first, *notes])

    def _levels_table(self) -> Table:
        rows: list[list[Cell]] = []
        streams = any(level.get("responses_per_request") is not None for level in self.levels)
        of_streams = (("time_to_first_response", "p50"), ("responses_per_request", "avg")) if streams else ()
        for level in self.levels:
            row: list[Cell] = [level.level.name, level.get("request_throughput"), level.get("inference_throughput")]
            row += [level.get("request_latency", "avg")]
            row += [level.get("request_latency", name) for name in PERCENTILES]
            row += [level.get(*of) for of in of_streams]
            row += [level.get("goodput"), level.get("good_request_share")] if self.slos else []
            rows.append([*row, int(level.get("error_count") or 0)])
        columns = ["level", "requests/s", "rows/s", "avg", *PERCENTILES]
        columns += ["first response p50", "responses"] if streams else []
        columns += ["goodput/s", "within SLOs"] if self.slos else []
        return Table("Requests as clients see them (times in ms)", [*columns, "errors"], rows)

    def _server_table(self) -> Table:
        rows: list[list[Cell]] = [
            [
                one.run.level.name,
                name,
                counts.num_requests,
                counts.num_executions,
                counts.rows_a_batch,
                *(counts.mean_ms(stage) for stage in STAGES),
            ]
            for one in self.runs
            for name, counts in one.counts.items()
        ]
        stages = [stage.replace("_", " ") for stage in STAGES]
        columns = ["level", "model", "requests", "executions", "rows/execution", *stages]
        note = "" if rows else "The server has no statistics."
        return Table("The server's statistics (mean times of a request in ms)", columns, rows, note)

    def _errors_table(self) -> Table | None:
        rows: list[list[Cell]] = [
            [level.level.name, kind, count, example]
            for level in self.levels
            for kind, (count, example) in level.errors.items()
        ]
        return Table("Errors", ("level", "kind", "count", "example"), rows) if rows else None

    def _plot(self) -> Plot:
        shown = [level for level in self.levels if level.get("request_throughput") is not None]
        rates = [level.get("request_throughput") or 0.0 for level in shown]
        lines = [
            Series(name, rates, [level.get("request_latency", name) or 0.0 for level in shown])
            for name in ("p50", "p99")
        ]
        return Plot("Latency by throughput", "requests/s", "latency (ms)", lines)
