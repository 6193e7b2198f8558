"""What clients saw of their requests, in a few bytes each: a million are 30 MiB."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class Outcomes:
    """One entry a finished request, in the order in which they ended. A time that there is not is NaN. `itl_s` is the
    mean gap between tokens."""

    ttft_slo_s: float
    itl_slo_s: float
    arrived_s: array[float] = field(default_factory=lambda: array("d"))
    ended_s: array[float] = field(default_factory=lambda: array("d"))
    ttft_s: array[float] = field(default_factory=lambda: array("f"))
    itl_s: array[float] = field(default_factory=lambda: array("f"))
    num_output: array[int] = field(default_factory=lambda: array("i"))
    is_good: array[int] = field(default_factory=lambda: array("b"))
    ends: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.arrived_s)

    def add(self, arrived_s: float, first_s: float | None, ended_s: float, num_output: int, end: str) -> None:
        """A request is over: `end` is "stop" or "length", or what went wrong."""
        ttft_s = math.nan if first_s is None else first_s - arrived_s
        itl_s = math.nan if first_s is None or num_output < 2 else (ended_s - first_s) / (num_output - 1)
        good = end in ("stop", "length") and ttft_s <= self.ttft_slo_s and not itl_s > self.itl_slo_s
        self.arrived_s.append(arrived_s)
        self.ended_s.append(ended_s)
        self.ttft_s.append(ttft_s)
        self.itl_s.append(itl_s)
        self.num_output.append(num_output)
        self.is_good.append(good)
        self.ends[end] += 1

    @property
    def num_good(self) -> int:
        return sum(self.is_good)

    @property
    def num_good_tokens(self) -> int:
        """Output tokens of the good ones."""
        return sum(num for num, good in zip(self.num_output, self.is_good, strict=True) if good)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last; where all came at once, to the last end."""
        first_s = min(self.arrived_s, default=0.0)
        return max(self.arrived_s, default=0.0) - first_s or max(self.ended_s, default=0.0) - first_s

    def mean_ms(self, values: Sequence[float]) -> float:
        """NaN if no request has the value."""
        known = [value for value in values if not math.isnan(value)]
        return sum(known) / len(known) * 1e3 if known else math.nan

    def percentiles_ms(self, values: Sequence[float]) -> dict[int, float]:
        known = np.asarray(values, dtype=np.float64)
        known = known[~np.isnan(known)]
        if not known.size:
            return dict.fromkeys(PERCENTILES, math.nan)
        found = np.percentile(known, PERCENTILES) * 1e3
        return {percent: float(value) for percent, value in zip(PERCENTILES, found, strict=True)}

    def good_by_time(self, num_bins: int) -> tuple[list[float], list[float], list[float]]:
        """Middles of as many stretches of the run, and in each the goodput and the arrivals, a second."""
        if not self.arrived_s:
            return [], [], []
        arrived = np.asarray(self.arrived_s)
        edges = np.linspace(arrived.min(), max(arrived.max(), arrived.min() + 1e-9), num_bins + 1)
        width = edges[1] - edges[0]
        good = np.histogram(arrived[np.asarray(self.is_good, dtype=bool)], edges)[0] / width
        offered = np.histogram(arrived, edges)[0] / width
        middles = 0.5 * (edges[:-1] + edges[1:])
        return middles.tolist(), good.tolist(), offered.tolist()
