"""The counts of all fronts, added up in those of the dispatcher's process, from which the metrics page is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from slipstream.router.observability.front_counts import FieldCounts, FrontMetrics, Histogram, LatenciesByVersion
from slipstream.router.observability.tracing.tracer import TraceCounts


def counts_of(metrics: FrontMetrics, unauthenticated: Mapping[str, int], traces: TraceCounts | None) -> bytes:
    """All counts of a front, as JSON."""
    reported = {name: plain(value) for name, value in vars(metrics).items()}
    reported |= {"unauthenticated": unauthenticated, "traces": asdict(traces) if traces is not None else {}}
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
        for name, value in reported.items():
            before = self._latest.get(name)
            if name == "unauthenticated":
                add_counts(self._unauthenticated, value, before or {})
                continue
            if name == "traces":
                self._add_traces(value, before or {})
                continue
            mine = getattr(self._metrics, name)
            if isinstance(mine, Histogram):
                add_histogram(mine, value, before)
            elif isinstance(mine, LatenciesByVersion):
                add_latencies(mine, value, before or {})
            elif isinstance(mine, FieldCounts):
                for field, count in value.items():
                    mine.add(field, count - (before or {}).get(field, 0))
            elif isinstance(mine, Counter):
                add_counts(mine, value, before or {})
            else:
                setattr(self._metrics, name, mine + value - (before or 0))
        self._latest = reported

    def _add_traces(self, now: Mapping[str, int], before: Mapping[str, int]) -> None:
        if self._traces is not None:
            for name, count in now.items():
                setattr(self._traces, name, getattr(self._traces, name) + count - before.get(name, 0))


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
