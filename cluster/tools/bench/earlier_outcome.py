"""The JSON of an earlier run, and a run beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.load.measures import FORMAT, Measures
from slipstream.cluster.tools.report.table import Cell, Table

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


def read_outcome(path: Path) -> dict[str, Any]:
    """Reads the JSON of an earlier run. Raises BenchError."""
    try:
        outcome = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"--compare: {path}: {error}") from None
    if not isinstance(outcome, dict) or outcome.get("format") != FORMAT or not isinstance(outcome.get("levels"), list):
        raise BenchError(f"--compare: {path} is no result of `slipstream bench --json`")
    return outcome


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
