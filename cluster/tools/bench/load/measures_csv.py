"""Measures as CSV, with a row for each level and metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from slipstream.cluster.tools.bench.load.measures import STATISTICS, Measures


def csv_of(levels: Iterable[Measures]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["level", "metric", "unit", *STATISTICS])
    for level in levels:
        for metric in level.metrics.values():
            values = [metric.values.get(statistic, "") for statistic in STATISTICS]
            writer.writerow([level.level.name, metric.name, metric.unit, *values])
    return text.getvalue()
