"""What was measured with one setting, and which of two settings is better."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slipstream.cluster.tools.bench.load.answer_slos import Slos
from slipstream.cluster.tools.bench.tensors.server_counts import ServerCounts
from slipstream.cluster.tools.bench.tensors.tensor_levels import TensorRun, tensor_measures
from slipstream.cluster.tools.plan.tensors.tensor_settings import TensorSettings

GAIN = 0.03  # what a setting has to gain


@dataclass(frozen=True, slots=True)
class TrialPoint:
    """One number of clients, each of which waits for its answer before it asks again."""

    concurrency: int
    requests_s: float
    p50_ms: float
    p99_ms: float
    num_errors: int
    counts: ServerCounts

    @classmethod
    def of(cls, run: TensorRun, concurrency: int, model: str) -> TrialPoint:
        found = tensor_measures(run, Slos({}))
        return cls(
            concurrency,
            found.get("request_throughput") or 0.0,
            found.get("request_latency", "p50") or math.inf,
            found.get("request_latency", "p99") or math.inf,
            int(found.get("error_count") or 0),
            run.counts.get(model, ServerCounts()),
        )


@dataclass(slots=True)
class SettingTrial:
    """`failure` says why the model could not be loaded with these settings."""

    settings: TensorSettings
    latency_ms: float
    points: list[TrialPoint] = field(default_factory=list)
    failure: str = ""

    def keeps_limit(self, point: TrialPoint) -> bool:
        return point.p99_ms <= self.latency_ms and not point.num_errors

    @property
    def best(self) -> TrialPoint | None:
        """The point with most requests of those within the limit, or the fastest of all if there is none."""
        within = [point for point in self.points if self.keeps_limit(point)]
        if within:
            return max(within, key=lambda point: point.requests_s)
        return min(self.points, key=lambda point: point.p99_ms, default=None)

    @property
    def is_within(self) -> bool:
        return any(self.keeps_limit(point) for point in self.points)

    @property
    def requests_s(self) -> float:
        """Within the limit."""
        return self.best.requests_s if self.best is not None and self.is_within else 0.0

    def is_better_than(self, other: SettingTrial) -> bool:
        """A setting that keeps the limit before one that does not; then by throughput, or by p99 if neither does."""
        if self.best is None or other.best is None:
            return self.best is not None
        if self.is_within != other.is_within:
            return self.is_within
        if self.is_within:
            return self.requests_s > other.requests_s * (1 + GAIN)
        return self.best.p99_ms < other.best.p99_ms * (1 - GAIN)
