"""What the metrics show of one version of a model beside its statistics, and of the response cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.router.tensors.custom_metrics import CustomFamily
from slipstream.router.tensors.infer_error import FailureReason
from slipstream.router.tensors.infer_service import ModelStatistics
from slipstream.router.tensors.latencies import LatencyHistogram, LatencySummaries


@dataclass(frozen=True, slots=True)
class VersionMetrics:
    """`num_pending` requests wait to be executed. `summaries` and `first_responses`, of a decoupled model, are None
    where the configuration does not ask for them."""

    statistics: ModelStatistics
    failures: Mapping[FailureReason, int] = field(default_factory=dict)
    num_pending: int = 0
    load_s: float = 0.0
    uses_response_cache: bool = False
    summaries: LatencySummaries | None = None
    first_responses: LatencyHistogram | None = None


@dataclass(frozen=True, slots=True)
class CacheMetrics:
    """Of the response cache."""

    size_bytes: int
    used_bytes: int
    num_entries: int
    num_hits: int
    num_misses: int
    num_evictions: int


class TensorMetricsSource(Protocol):
    """What the page of metrics asks; all on the router's event loop."""

    def version_metrics(self) -> Sequence[VersionMetrics]:
        """Of all versions that are served."""

    def custom_families(self) -> Sequence[CustomFamily]:
        """What models define for themselves, of all instances."""

    def cache_metrics(self) -> CacheMetrics | None:
        """None: there is no response cache."""
