"""What the page of metrics asks of the models that are served."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.batching.responses.response_cache import ResponseCache, uses_cache
from slipstream.router.infer.served_version import ServedVersion
from slipstream.router.infer.tensor_service import TensorService
from slipstream.router.tensors.custom_metrics import CustomFamily
from slipstream.router.tensors.version_metrics import CacheMetrics, VersionMetrics


class ServiceMetrics:
    """TensorMetricsSource. `cache` None: there is no response cache."""

    def __init__(self, service: TensorService, cache: ResponseCache | None = None) -> None:
        self._service = service
        self._cache = cache

    def version_metrics(self) -> Sequence[VersionMetrics]:
        return [_of_version(runtime) for _, runtime in self._service.runtimes()]

    def custom_families(self) -> Sequence[CustomFamily]:
        return [family for _, runtime in self._service.runtimes() for family in runtime.custom_families]

    def cache_metrics(self) -> CacheMetrics | None:
        cache = self._cache
        if cache is None:
            return None
        durations = [runtime.recorder.statistics.durations for _, runtime in self._service.runtimes()]
        return CacheMetrics(
            size_bytes=cache.max_bytes,
            used_bytes=cache.num_bytes,
            num_entries=len(cache),
            num_hits=sum(each.cache_hit.count for each in durations),
            num_misses=sum(each.cache_miss.count for each in durations),
            num_evictions=cache.num_evictions,
        )


def _of_version(runtime: ServedVersion) -> VersionMetrics:
    recorder = runtime.recorder
    return VersionMetrics(
        statistics=recorder.statistics,
        failures=recorder.failures,
        num_pending=runtime.num_waiting,
        load_s=recorder.load_s,
        uses_response_cache=uses_cache(runtime.spec),
        summaries=recorder.summaries,
        first_responses=recorder.first_responses if runtime.spec.is_decoupled else None,
    )
