"""Metrics that models define for themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MetricKind = Literal["counter", "gauge", "histogram"]
KINDS: frozenset[str] = frozenset(("counter", "gauge", "histogram"))
METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class CustomMetric:
    """`value` is that of a counter or gauge, and the sum of a histogram's observations. `bucket_counts` are those up to
    each of the `bucket_limits`, and last the ones beyond; they do not include each other."""

    value: float = 0.0
    bucket_limits: tuple[float, ...] = ()
    bucket_counts: tuple[int, ...] = ()


@dataclass(slots=True)
class CustomFamily:
    name: str
    description: str
    kind: MetricKind
    metrics: dict[Labels, CustomMetric] = field(default_factory=dict)

    @classmethod
    def of_wire(cls, family: Mapping[str, Any]) -> CustomFamily:
        """As an instance has sent it. Raises ValueError, KeyError or TypeError if Prometheus could not read it."""
        name, kind = family["name"], family["kind"].lower()
        if not METRIC_NAME.fullmatch(name):
            raise ValueError(f"name must be that of a metric, got {name!r}")
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {sorted(KINDS)}, got {kind!r}")
        metrics = {_labels(metric["labels"]): _metric(metric, kind) for metric in family["metrics"]}
        return cls(name, str(family["description"]), kind, metrics)


def _labels(labels: Mapping[str, Any]) -> Labels:
    for name in labels:
        if not LABEL_NAME.fullmatch(name):
            raise ValueError(f"labels must have names of labels, got {name!r}")
    return tuple(sorted((name, str(value)) for name, value in labels.items()))


def _metric(metric: Mapping[str, Any], kind: MetricKind) -> CustomMetric:
    if kind != "histogram":
        return CustomMetric(float(metric["value"]))
    limits, counts = tuple(map(float, metric["buckets"])), tuple(map(int, metric["counts"]))
    if len(counts) != len(limits) + 1:
        raise ValueError(f"counts must have one more than the {len(limits)} buckets, got {len(counts)}")
    return CustomMetric(float(metric["sum"]), limits, counts)


def merged_families(families: Iterable[CustomFamily]) -> list[CustomFamily]:
    """The families of several instances as one, by their names. Counters and histograms with the same labels are added
    up, of gauges the last one counts. One whose kind or buckets differ from the first of its name is left out."""
    merged: dict[str, CustomFamily] = {}
    for family in families:
        known = merged.setdefault(family.name, CustomFamily(family.name, family.description, family.kind))
        if known.kind != family.kind:
            continue
        for labels, metric in family.metrics.items():
            before = known.metrics.get(labels)
            if before is None or family.kind == "gauge":
                known.metrics[labels] = metric
            elif before.bucket_limits == metric.bucket_limits:
                counts = zip(before.bucket_counts, metric.bucket_counts, strict=True)
                total = math.fsum((before.value, metric.value))
                known.metrics[labels] = CustomMetric(total, before.bucket_limits, tuple(a + b for a, b in counts))
    return list(merged.values())
