"""The load on the server: how many requests at a time, or per second, and for how long."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

ArrivalKind = Literal["poisson", "constant", "gamma"]


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """One level of a sweep: `concurrency` conversations at a time, or `rate` new ones per second, or, with neither, at
    the times of the trace. With a rate, `concurrency` is an upper limit."""

    concurrency: int | None = None
    rate: float | None = None
    arrivals: ArrivalKind = "poisson"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {self.concurrency}")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"request rate must be over 0, got {self.rate}")
        if not 0 < self.burstiness < math.inf:
            raise ValueError(f"burstiness must be over 0, got {self.burstiness}")

    @property
    def name(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g}/s"
        return f"concurrency {self.concurrency}" if self.concurrency is not None else "trace"

    @property
    def is_closed(self) -> bool:
        """Whether the loop is closed: a new conversation begins only when another one has ended."""
        return self.rate is None and self.concurrency is not None

    def times_s(self, seed: int) -> Iterator[float]:
        """An endless series of the times at which conversations begin. The gaps are gamma-distributed with the given
        mean and a squared coefficient of variation of 1 / burstiness: 1 is Poisson, less is bursty (vLLM's
        definition)."""
        assert self.rate is not None
        rng, at_s, mean_s = random.Random(seed), 0.0, 1.0 / self.rate
        while True:
            yield at_s
            if self.arrivals == "constant":
                at_s += mean_s
            elif self.arrivals == "poisson":
                at_s += rng.expovariate(self.rate)
            else:
                at_s += rng.gammavariate(self.burstiness, mean_s / self.burstiness)


@dataclass(frozen=True, slots=True)
class Extent:
    """When a level ends: after `num_requests`, or when `duration_s` have passed; running requests may then end, within
    `grace_s`. `num_warm_up` requests come first and are not counted. If no client can connect to the server for
    `gone_s`, it counts as gone, and the level ends."""

    num_requests: int | None = None
    duration_s: float | None = None
    num_warm_up: int = 0
    timeout_s: float = 600.0
    grace_s: float = 30.0
    gone_s: float = 10.0
