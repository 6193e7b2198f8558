"""Metrics of a model's own, which the server shows beside its own."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from enum import IntEnum
from threading import Lock
from typing import Any

from slipstream.workers.backends.python.model_api.server_link import PROCESS
from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException
from slipstream.workers.backends.python.model_api.tensors.text import text_of

DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class MetricKind(IntEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class Metric:
    """One line of a family. A counter or gauge has a value. A histogram counts what is at most each of its `buckets`,
    and what is beyond the last."""

    __module__ = "c_python_backend_utils"

    def __init__(self, kind: MetricKind, labels: dict[str, str], buckets: list[float] | None, changed: Any) -> None:
        self._kind = kind
        self._labels = labels
        self._buckets = buckets
        self._changed = changed
        self._lock = Lock()
        self._is_deleted = False
        self._value = 0.0  # of a histogram: the sum
        self._counts = [0] * (len(buckets) + 1) if buckets is not None else []

    def increment(self, value: float) -> None:
        self._check("increment", "Increment", self._kind is not MetricKind.HISTOGRAM)
        if self._kind is MetricKind.COUNTER and value < 0:
            raise refused(
                "Failed to increment metric value",
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.",
            )
        with self._lock:
            self._value += value
        self._changed()

    def set(self, value: float) -> None:
        self._check("set", "Set", self._kind is MetricKind.GAUGE)
        self._value = float(value)
        self._changed()

    def observe(self, value: float) -> None:
        self._check("observe", "Observe", self._kind is MetricKind.HISTOGRAM)
        assert self._buckets is not None
        with self._lock:
            self._counts[bisect_left(self._buckets, value)] += 1
            self._value += value
        self._changed()

    def value(self) -> float:
        self._check("get", "Value", self._kind is not MetricKind.HISTOGRAM)
        return self._value

    def _as_dict(self) -> dict[str, Any]:
        """As it travels to the server."""
        with self._lock:
            if self._buckets is None:
                return {"labels": self._labels, "value": self._value}
            counts = list(self._counts)
            return {"labels": self._labels, "buckets": self._buckets, "counts": counts, "sum": self._value}

    def _check(self, action: str, name: str, is_supported: bool) -> None:
        if self._is_deleted:
            raise TritonModelException(f"Failed to {action} metric value: {DELETED}")
        if not is_supported:
            kind = f"TRITONSERVER_METRIC_KIND_{self._kind.name}"
            raise refused(f"Failed to {action} metric value", f"{kind} does not support {name}")


class FamilyState:
    """What all families of one name share. It ends with the last of them, and its metrics with it."""

    __slots__ = ("description", "kind", "metrics", "name", "num_families")

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.metrics: dict[str, Metric] = {}
        self.num_families = 0

    def changed(self) -> None:
        PROCESS.link.metrics_changed(self.name)

    def as_dict(self) -> dict[str, Any]:
        """As it travels to the server."""
        return {
            "name": self.name,
            "description": self.description,
            "kind": self.kind.name.lower(),
            "metrics": [metric._as_dict() for metric in list(self.metrics.values())],
        }


class MetricFamily:
    """Metrics of one name. Families of the same name have the same metrics."""

    __module__ = "c_python_backend_utils"
    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    _state: FamilyState | None = None

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        name, description = text_of(name, "MetricFamily(): name"), text_of(description, "MetricFamily(): description")
        if NAME.fullmatch(name) is None:
            raise refused("Error when creating MetricFamily", "Invalid metric name")
        state: FamilyState = PROCESS.families.setdefault(name, FamilyState(name, description, MetricKind(kind)))
        if state.kind is not kind:
            raise refused("Error when creating MetricFamily", "Family name already exists with different type")
        self._state = state
        state.num_families += 1
        state.changed()

    def Metric(  # noqa: N802 - the API's name
        self, labels: dict[str, str] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """The metric with these labels; there is one."""
        state = self._state
        assert state is not None
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        check_buckets(state.kind, buckets)
        if any(not isinstance(value, str) for value in (labels or {}).values()):
            raise refused("Error when creating Metric", "attempt to access JSON non-string as string")
        key = json.dumps(labels or {}, sort_keys=True)
        if key not in state.metrics:
            limits = None if buckets is None else [float(limit) for limit in buckets]
            state.metrics[key] = Metric(state.kind, labels or {}, limits, state.changed)
            state.changed()
        return state.metrics[key]

    def __del__(self) -> None:
        state = self._state
        if state is None:
            return
        state.num_families -= 1
        if not state.num_families:
            for metric in state.metrics.values():
                metric._is_deleted = True
            state.metrics.clear()
            PROCESS.families.pop(state.name, None)
            PROCESS.link.metrics_ended(state.as_dict())


def check_buckets(kind: MetricKind, buckets: list[float] | None) -> None:
    if buckets is None:
        if kind is MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        return
    if not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    if kind is not MetricKind.HISTOGRAM:
        raise TritonModelException("Failed to create metric. Unexpected buckets found.")
    if any(lower >= upper for lower, upper in zip(buckets, buckets[1:])):
        raise refused("Error when creating Metric", "Bucket Boundaries must be strictly sorted")


def families_as_dicts(names: list[str]) -> list[dict[str, Any]]:
    """Families of this process that still exist, as they travel to the server."""
    return [PROCESS.families[name].as_dict() for name in names if name in PROCESS.families]


def refused(what: str, reason: str) -> TritonModelException:
    return TritonModelException(f"{what}: {PROCESS.link.refusal(reason)}")
