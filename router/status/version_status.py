"""The counts and the state of each version of the model."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from slipstream.router.status.mirror_status import MirrorCounts

LEAST_S = 1e-6  # what counts for durations that are shorter, because 0 has no logarithm


@dataclass(slots=True)
class LogMoments:
    """Number, sum and sum of squares of the natural logarithms of durations in seconds. They say how large a typical
    duration (the geometric mean) is and how well that is known; and those of a period are the differences of those at
    its end and its beginning. Logarithms, because latencies are nearer to log-normal than to normal: a mean of the
    durations themselves is that of a few long ones."""

    num: int = 0
    sum: float = 0.0
    sum_squares: float = 0.0

    def add(self, seconds: float) -> None:
        logarithm = math.log(max(seconds, LEAST_S))
        self.num += 1
        self.sum += logarithm
        self.sum_squares += logarithm * logarithm

    def since(self, then: LogMoments) -> LogMoments:
        """The moments of what was added since `then`."""
        return LogMoments(self.num - then.num, self.sum - then.sum, self.sum_squares - then.sum_squares)

    @property
    def mean(self) -> float:
        """The mean of the logarithms."""
        return self.sum / self.num

    @property
    def typical_s(self) -> float:
        """The geometric mean of the durations."""
        return math.exp(self.mean)

    @property
    def error_squared(self) -> float:
        """The square of the standard error of `mean`."""
        variance = (self.sum_squares - self.sum * self.mean) / (self.num - 1)
        return max(variance, 0.0) / self.num


@dataclass(slots=True)
class VersionCounts:
    """The counts of one version since the router started. `ttft_s` is the sum of the times to first token of the
    `num_first_tokens` requests that had one, `itl_s` the sum of the mean times between tokens of the `num_itls` that
    had several; `ends` counts outcomes. All of these are counted once a request, for the version that it ended on.
    """

    num_requests: int = 0  # requests that were given this version at admission
    num_moved_in: int = 0  # requests that came from another version
    num_failed_attempts: int = 0  # failures that the version may be to blame for
    num_first_tokens: int = 0
    ttft_s: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    num_itls: int = 0
    itl_s: float = 0.0
    ttft_moments: LogMoments = field(default_factory=LogMoments)
    itl_moments: LogMoments = field(default_factory=LogMoments)


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The state of one version. `weight` is its share in the split; None: there is no split. `is_live`: one of its
    decode workers takes new work. `mirror`: it gets copies of requests, and no requests of clients."""

    name: str
    weight: float | None
    is_live: bool
    num_prefill: int
    num_decode: int
    num_waiting: int
    counts: VersionCounts
    mirror: MirrorCounts | None = None
