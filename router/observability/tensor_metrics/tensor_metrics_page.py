"""The page with Triton's metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from slipstream.router.config.kserve_config import TensorMetricsConfig
from slipstream.router.machine.gpu_reader import GpuReading
from slipstream.router.observability.tensor_metrics.machine_families import add_machine_families
from slipstream.router.observability.tensor_metrics.machine_reading import MachineReader, MachineReading
from slipstream.router.observability.tensor_metrics.metric_lines import MetricLines
from slipstream.router.observability.tensor_metrics.version_families import (
    add_latency_families,
    add_version_families,
)
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.custom_metrics import CustomFamily, merged_families
from slipstream.router.tensors.version_metrics import CacheMetrics, TensorMetricsSource


class TensorMetricsPage:
    """Life cycle: `start`, `stop`; between them the machine is read each `config.interval_s`, in a thread. `pool` is
    what stands for Triton's pool of pinned memory. `more_gpus` are those of other machines; one that is read here as
    well is shown once."""

    def __init__(
        self,
        source: TensorMetricsSource,
        pool: RegionPool,
        config: TensorMetricsConfig,
        more_gpus: Callable[[], Iterable[GpuReading]] = tuple,
    ) -> None:
        self._source = source
        self._pool = pool
        self._config = config
        self._more_gpus = more_gpus
        self._machine = MachineReading()
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._config.cpu or self._config.gpu:
            self._reading = asyncio.create_task(self._read_machine())

    async def stop(self) -> None:
        """Safe to call twice."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def render(self, more: Sequence[CustomFamily] = ()) -> bytes:
        """In Prometheus' text form; `more` are families beside those of the models."""
        config = self._config
        lines = MetricLines()
        versions = self._source.version_metrics()
        add_version_families(lines, versions, has_durations=config.counter_latencies)
        usage = self._pool.usage
        total_text = "Pinned memory pool total memory size, in bytes"
        lines.family("nv_pinned_memory_pool_total_bytes", total_text, "gauge", [((), usage.limit_bytes)])
        used_text = "Pinned memory pool used memory size, in bytes"
        lines.family("nv_pinned_memory_pool_used_bytes", used_text, "gauge", [((), usage.leased_bytes)])
        add_machine_families(lines, replace(self._machine, gpus=self._gpus()))
        cache = self._source.cache_metrics()
        if cache is not None:
            _add_cache(lines, cache)
        add_latency_families(lines, versions, [quantile for quantile, _ in config.summary_quantiles], time.monotonic())
        for family in merged_families((*self._source.custom_families(), *more)):
            _add_custom(lines, family)
        return lines.text()

    def _gpus(self) -> tuple[GpuReading, ...]:
        if not self._config.gpu:
            return ()
        more = {gpu.uuid: gpu for gpu in self._more_gpus()}
        return tuple({**more, **{gpu.uuid: gpu for gpu in self._machine.gpus}}.values())

    async def _read_machine(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="machine") as thread:
            config = self._config
            reader = await loop.run_in_executor(
                thread, lambda: MachineReader(reads_cpu=config.cpu, reads_gpu=config.gpu)
            )
            try:
                while True:
                    self._machine = await loop.run_in_executor(thread, reader.read)
                    await asyncio.sleep(self._config.interval_s)
            finally:
                reader.close()


def _add_cache(lines: MetricLines, cache: CacheMetrics) -> None:
    for name, description, value in (
        ("nv_cache_util", "Cache utilization [0.0 - 1.0]", cache.used_bytes / max(1, cache.size_bytes)),
        ("nv_cache_num_entries", "Number of responses stored in response cache", cache.num_entries),
        ("nv_cache_num_hits", "Number of cache hits in response cache", cache.num_hits),
        ("nv_cache_num_misses", "Number of cache misses in response cache", cache.num_misses),
        ("nv_cache_num_lookups", "Number of cache lookups in response cache", cache.num_hits + cache.num_misses),
        ("nv_cache_num_evictions", "Number of cache evictions in response cache", cache.num_evictions),
    ):
        lines.family(name, description, "gauge", [((), value)])


def _add_custom(lines: MetricLines, family: CustomFamily) -> None:
    """What a model has defined; a name that begins as Triton's own is left out."""
    if family.name.startswith("nv_"):
        return
    if family.kind != "histogram":
        samples = [(labels, metric.value) for labels, metric in family.metrics.items()]
        lines.family(family.name, family.description, family.kind, samples)
        return
    lines.head(family.name, family.description, "histogram")
    for labels, metric in family.metrics.items():
        lines.histogram(family.name, labels, metric.bucket_limits, metric.bucket_counts, metric.value)
