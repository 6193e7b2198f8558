"""The counts of all fronts, added up in those of the dispatcher's process, from which the metrics page is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from slipstream.router.observability.front_counts import FrontMetrics, Histogram, LatenciesByVersion, ModelCounts
from slipstream.router.observability.tracing.tracer import TraceCounts


def counts_of(metrics: FrontMetrics, unauthenticated: Mapping[str, int], traces: TraceCounts | None) -> bytes:
    """All counts of a front, as JSON."""
    reported = {
        "models": {
            model: {name: plain(value) for name, value in vars(of).items()} for model, of in metrics.models.items()
        },
        "ignored_fields": metrics.ignored_fields,
        "responses": metrics.responses,
        "store_errors": metrics.store_errors,
        "batch_lines": metrics.batch_lines,
        "unauthenticated": unauthenticated,
        "traces": asdict(traces) if traces is not None else {},
    }
    return orjson.dumps(reported, option=orjson.OPT_NON_STR_KEYS)


def plain(value: Any) -> Any:
    if isinstance(value, Histogram):
        return [*value.counts, value.total]
    if isinstance(value, LatenciesByVersion):
        return {
            version: {name: plain(one) for name, one in all_.histograms().items()} for version, all_ in value.items()
        }
    return value


class FrontTally:
    """Takes the counts of one front, which only grow, and adds what is new in them; so those of a front that died stay
    in the sums."""

    def __init__(self, metrics: FrontMetrics, unauthenticated: Counter[str], traces: TraceCounts | None = None) -> None:
        self._metrics = metrics
        self._unauthenticated = unauthenticated
        self._traces = traces
        self._latest: dict[str, Any] = {}

    def add(self, counts: bytes) -> None:
        reported: dict[str, Any] = orjson.loads(counts)
        before = self._latest
        add_counts(self._unauthenticated, reported["unauthenticated"], before.get("unauthenticated", {}))
        add_counts(self._metrics.responses, reported["responses"], before.get("responses", {}))
        for name in ("store_errors", "batch_lines"):
            add_counts(getattr(self._metrics, name), reported[name], before.get(name, {}))
        self._add_traces(reported["traces"], before.get("traces", {}))
        fields = before.get("ignored_fields", {})
        for field, count in reported["ignored_fields"].items():
            self._metrics.ignored_fields.add(field, count - fields.get(field, 0))
        for model, values in reported["models"].items():
            mine = self._metrics.models.get(model)
            if mine is not None:  # else it has been removed meanwhile
                add_model(mine, values, before.get("models", {}).get(model, {}))
        self._latest = reported

    def _add_traces(self, now: Mapping[str, int], before: Mapping[str, int]) -> None:
        if self._traces is not None:
            for name, count in now.items():
                setattr(self._traces, name, getattr(self._traces, name) + count - before.get(name, 0))


def add_model(mine: ModelCounts, now: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    for name, value in now.items():
        was, own = before.get(name), getattr(mine, name)
        if isinstance(own, Histogram):
            add_histogram(own, value, was)
        elif isinstance(own, LatenciesByVersion):
            add_latencies(own, value, was or {})
        elif isinstance(own, Counter):
            add_counts(own, value, was or {})
        else:
            setattr(mine, name, own + value - (was or 0))


def add_histogram(histogram: Histogram, now: Sequence[float], before: Sequence[float] | None) -> None:
    *counts, total = [value - was for value, was in zip(now, before or [0] * len(now), strict=True)]
    histogram.counts = [count + int(new) for count, new in zip(histogram.counts, counts, strict=True)]
    histogram.total += total


def add_latencies(
    latencies: LatenciesByVersion,
    now: Mapping[str, Mapping[str, Sequence[float]]],
    before: Mapping[str, Mapping[str, Sequence[float]]],
) -> None:
    """A front forgets versions that it has not served for long; their sums here stay until they are forgotten, too."""
    for version, values in now.items():
        was = before.get(version, {})
        if values == was:
            continue
        for name, histogram in latencies.of(version).histograms().items():
            add_histogram(histogram, values[name], was.get(name))


def add_counts(counter: Counter[Any], now: Mapping[str, int], before: Mapping[str, int]) -> None:
    """JSON's keys are strings; HTTP statuses are numbers."""
    for key, count in now.items():
        counter[int(key) if key.isdecimal() else key] += count - before.get(key, 0)
