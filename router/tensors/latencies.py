"""How long requests took lately, for the quantiles and histograms of the metrics."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

WINDOW_S = 60.0  # as Triton's summaries
MAX_SAMPLES = 4096  # the latest ones; a scrape sorts them


@dataclass(slots=True)
class LatencySummary:
    """Counts all, and has the quantiles of the last minute. Times are of one monotonic clock."""

    count: int = 0
    sum_us: float = 0.0
    _samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))

    def add(self, us: float, now: float) -> None:
        self.count += 1
        self.sum_us += us
        self._samples.append((now, us))

    def quantiles(self, wanted: Sequence[float], now: float) -> list[float]:
        """NaN if there was nothing in the last minute."""
        while self._samples and self._samples[0][0] < now - WINDOW_S:
            self._samples.popleft()
        ranked = sorted(us for _, us in self._samples)
        if not ranked:
            return [math.nan] * len(wanted)
        return [ranked[min(len(ranked) - 1, int(quantile * len(ranked)))] for quantile in wanted]


@dataclass(slots=True)
class LatencySummaries:
    """Of the requests of one version of a model, by stage."""

    request: LatencySummary = field(default_factory=LatencySummary)
    queue: LatencySummary = field(default_factory=LatencySummary)
    compute_input: LatencySummary = field(default_factory=LatencySummary)
    compute_infer: LatencySummary = field(default_factory=LatencySummary)
    compute_output: LatencySummary = field(default_factory=LatencySummary)
    cache_hit: LatencySummary = field(default_factory=LatencySummary)
    cache_miss: LatencySummary = field(default_factory=LatencySummary)


@dataclass(slots=True)
class LatencyHistogram:
    """`counts` are those up to each limit, and last the ones beyond; they do not include each other."""

    limits_ms: tuple[float, ...] = (100, 500, 2000, 5000)  # as Triton's histogram of first responses
    counts: list[int] = field(default_factory=list)
    sum_ms: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.limits_ms) + 1)

    def add(self, ms: float) -> None:
        self.counts[bisect_left(self.limits_ms, ms)] += 1
        self.sum_ms += ms
