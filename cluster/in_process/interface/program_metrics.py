"""Metrics that a program defines beside those of its models."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from weakref import WeakSet

from slipstream.cluster.in_process.interface.errors import InvalidArgumentError, UnsupportedError
from slipstream.cluster.in_process.interface.kinds import MetricKind
from slipstream.router.tensors.custom_metrics import CustomFamily, CustomMetric

# As in Triton, families belong to the process: all its servers report them.
FAMILIES: WeakSet[MetricFamily] = WeakSet()
CHANGES = threading.Lock()  # metrics are changed by the program's threads, and read by those of servers


class MetricFamily:
    """What metrics have in common. It is reported as long as the program keeps it."""

    def __init__(self, kind: MetricKind, name: str, description: str) -> None:
        """Raises InvalidArgumentError for a name that Prometheus could not read."""
        try:
            shown = {"name": name, "description": description, "kind": MetricKind(kind).name, "metrics": ()}
            CustomFamily.of_wire(shown)
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None
        self.kind = MetricKind(kind)
        self.name = name
        self.description = description
        self.metrics: WeakSet[Metric] = WeakSet()
        with CHANGES:
            FAMILIES.add(self)


class Metric:
    """One of a family's metrics, known by its labels. It is reported as long as the program keeps it."""

    def __init__(self, family: MetricFamily, labels: Mapping[str, str] | None = None) -> None:
        self._family = family
        self._labels = dict(labels or {})
        self._value = 0.0
        with CHANGES:
            family.metrics.add(self)

    @property
    def kind(self) -> MetricKind:
        return self._family.kind

    @property
    def value(self) -> float:
        return self._value

    def increment(self, value: float) -> None:
        """Raises InvalidArgumentError for a counter that is to become less."""
        if self.kind is MetricKind.COUNTER and value < 0:
            text = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
            raise InvalidArgumentError(text)
        with CHANGES:
            self._value += value

    def set_value(self, value: float) -> None:
        """Of a gauge. Raises UnsupportedError."""
        if self.kind is MetricKind.COUNTER:
            raise UnsupportedError("TRITONSERVER_METRIC_KIND_COUNTER does not support Set")
        with CHANGES:
            self._value = value

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self._labels.items()))


def program_families() -> list[CustomFamily]:
    """As they are now."""
    with CHANGES:
        return [
            CustomFamily(
                family.name,
                family.description,
                "counter" if family.kind is MetricKind.COUNTER else "gauge",
                {metric.labels: CustomMetric(metric.value) for metric in family.metrics},
            )
            for family in FAMILIES
        ]
