"""The counts of all fronts, added up in those of the dispatcher's process, from which the metrics page is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson

from slipstream.router.metrics import FrontMetrics, Histogram


def counts_of(metrics: FrontMetrics, unauthenticated: Mapping[str, int]) -> bytes:
    """All counts of a front, as JSON."""
    told = {name: plain(value) for name, value in vars(metrics).items()}
    return orjson.dumps(told | {"unauthenticated": unauthenticated}, option=orjson.OPT_NON_STR_KEYS)


def plain(value: Any) -> Any:
    return [*value.counts, value.total] if isinstance(value, Histogram) else value


class FrontTally:
    """Takes the counts of one front, which only grow, and adds what is new in them; so those of a front that died stay
    in the sums."""

    def __init__(self, metrics: FrontMetrics, unauthenticated: Counter[str]) -> None:
        self._metrics = metrics
        self._unauthenticated = unauthenticated
        self._latest: dict[str, Any] = {}

    def add(self, counts: bytes) -> None:
        told: dict[str, Any] = orjson.loads(counts)
        for name, value in told.items():
            before = self._latest.get(name)
            if name == "unauthenticated":
                add_counts(self._unauthenticated, value, before or {})
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


def add_counts(counter: Counter[Any], now: Mapping[str, int], before: Mapping[str, int]) -> None:
    """JSON's keys are strings; HTTP statuses are numbers."""
    for key, count in now.items():
        counter[int(key) if key.isdecimal() else key] += count - before.get(key, 0)
