"""The counts of all fronts, added up in those of the dispatcher's process, from which the metrics page is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson

from slipstream.router.metrics import FrontMetrics, Histogram
from slipstream.router.tracing.tracer import TraceCounts


def counts_of(metrics: FrontMetrics, unauthenticated: Mapping[str, int], traces: TraceCounts | None) -> bytes:
    """All counts of a front, as JSON."""
    told = {name: plain(value) for name, value in vars(metrics).items()}
    told |= {"unauthenticated": unauthenticated, "traces": asdict(traces) if traces is not None else {}}
    return orjson.dumps(told, option=orjson.OPT_NON_STR_KEYS)


def plain(value: Any) -> Any:
    return [*value.counts, value.total] if isinstance(value, Histogram) else value


class FrontTally:
    """Takes the counts of one front, which only grow, and adds what is new in them; so those of a front that died stay
    in the sums."""

    def __init__(self, metrics: FrontMetrics, unauthenticated: Counter[str], traces: TraceCounts | None = None) -> None:
        self._metrics = metrics
        self._unauthenticated = unauthenticated
        self._traces = traces
        self._latest: dict[str, Any] = {}

    def add(self, counts: bytes) -> None:
        told: dict[str, Any] = orjson.loads(counts)
        for name, value in told.items():
            before = self._latest.get(name)
            if name == "unauthenticated":
                add_counts(self._unauthenticated, value, before or {})
                continue
            if name == "traces":
                self._add_traces(value, before or {})
                continue
            mine = getattr(self._metrics, name)
            if isinstance(mine, Histogram):
                *values, total = [now - was for now, was in zip(value, before or [0] * len(value), strict=True)]
                mine.counts = [count + new for count, new in zip(mine.counts, values, strict=True)]
                mine.total += total
            elif isinstance(mine, Counter):
                add_counts(mine, value, before or {})
            else:
                setattr(self._metrics, name, mine + value - (before or 0))
        self._latest = told

    def _add_traces(self, now: Mapping[str, int], before: Mapping[str, int]) -> None:
        if self._traces is not None:
            for name, count in now.items():
                setattr(self._traces, name, getattr(self._traces, name) + count - before.get(name, 0))


def add_counts(counter: Counter[Any], now: Mapping[str, int], before: Mapping[str, int]) -> None:
    """JSON's keys are strings; HTTP statuses are numbers."""
    for key, count in now.items():
        counter[int(key) if key.isdecimal() else key] += count - before.get(key, 0)
