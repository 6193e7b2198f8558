"""Metrics of a model's own, which the server shows beside its own."""

from __future__ import annotations

import json
from bisect import bisect_left
from enum import IntEnum
from threading import Lock
from typing import Any

from slipstream.workers.backends.python.model_api.server_link import PROCESS
from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException


class MetricKind(IntEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


KIND_NAMES = {MetricKind.COUNTER: "counter", MetricKind.GAUGE: "gauge", MetricKind.HISTOGRAM: "histogram"}


class Metric:
    """One line of a family. `value` is a counter's or gauge's; `bucket_counts` are those of a histogram up to each of
    `buckets`, and beyond the last."""

    def __init__(self, family: MetricFamily, labels: dict[str, str], buckets: list[float] | None) -> None:
        self._family = family
        self._lock = Lock()
        self._value = 0.0
        self.labels = labels
        self.buckets = buckets
        self.bucket_counts = [0] * (len(buckets) + 1) if buckets is not None else []
        self.sum = 0.0

    def increment(self, value: float) -> None:
        if self._family.kind is MetricKind.HISTOGRAM:
            raise self._unsupported("increment", "Histogram")
        if self._family.kind is MetricKind.COUNTER and value < 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented "
                "monotonically by non-negative values."
            )
        with self._lock:
            self._value += value
        self._family.changed()

    def set(self, value: float) -> None:
        if self._family.kind is not MetricKind.GAUGE:
            raise self._unsupported("set", "Counter" if self._family.kind is MetricKind.COUNTER else "Histogram")
        self._value = float(value)
        self._family.changed()

    def observe(self, value: float) -> None:
        if self.buckets is None:
            raise self._unsupported("observe", "Counter" if self._family.kind is MetricKind.COUNTER else "Gauge")
        with self._lock:
            self.bucket_counts[bisect_left(self.buckets, value)] += 1
            self.sum += value
        self._family.changed()

    def value(self) -> float:
        if self.buckets is not None:
            raise self._unsupported("get", "Histogram")
        return self._value

    def as_dict(self) -> dict[str, Any]:
        """As it travels to the server."""
        with self._lock:
            if self.buckets is None:
                return {"labels": self.labels, "value": self._value}
            counts = list(self.bucket_counts)
            return {"labels": self.labels, "buckets": self.buckets, "counts": counts, "sum": self.sum}

    def _unsupported(self, action: str, kind: str) -> TritonModelException:
        what = "observe metric" if action == "observe" else f"{action} metric value"
        kind_name = f"TRITONSERVER_METRIC_KIND_{kind.upper()}"
        return TritonModelException(f"Failed to {what}: {kind_name} does not support {action.capitalize()}")


class MetricFamily:
    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        if not isinstance(name, str) or not isinstance(description, str):
            raise TypeError(f"MetricFamily(): name and description must be str, got {name!r} and {description!r}")
        self.name = name
        self.description = description
        self.kind = MetricKind(kind)
        self._metrics: dict[str, Metric] = {}
        PROCESS.link.metrics_changed(self)

    def Metric(  # noqa: N802 - the API's name
        self, labels: dict[str, str] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """The metric with these labels; there is one."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        self._check_buckets(buckets)
        key = json.dumps(labels, sort_keys=True)
        if key not in self._metrics:
            limits = None if buckets is None else [float(limit) for limit in buckets]
            texts = {name: str(value) for name, value in (labels or {}).items()}
            self._metrics[key] = Metric(self, texts, limits)
            self.changed()
        return self._metrics[key]

    def changed(self) -> None:
        PROCESS.link.metrics_changed(self)

    def as_dict(self) -> dict[str, Any]:
        """As it travels to the server."""
        return {
            "name": self.name,
            "description": self.description,
            "kind": KIND_NAMES[self.kind],
            "metrics": [metric.as_dict() for metric in list(self._metrics.values())],
        }

    def _check_buckets(self, buckets: list[float] | None) -> None:
        if buckets is None:
            if self.kind is MetricKind.HISTOGRAM:
                raise TritonModelException("Failed to create metric. Missing required buckets.")
            return
        if not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if self.kind is not MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
