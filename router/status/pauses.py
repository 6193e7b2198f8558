"""How long streams paused while they moved to another worker."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

# The upper ends of the buckets, in seconds.
PAUSE_S = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0),
)


@dataclass(slots=True)
class Pauses:
    """A histogram of the time from the last token at the source to the next token of the stream."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(PAUSE_S) + 1))
    total_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(PAUSE_S, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """The cumulative counts by upper bound, as Prometheus wants them."""
        so_far, buckets = 0, []
        for bound, count in zip((*map(str, PAUSE_S), "+Inf"), self.counts, strict=True):
            so_far += count
            buckets.append((bound, float(so_far)))
        return buckets
