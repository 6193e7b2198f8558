"""Prometheus metrics of what the processes of workers and their GPUs take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from slipstream.router.protocol.messages import GpuUsage
from slipstream.router.status.status import WorkerStatus

GPU_GAUGES: tuple[tuple[str, str, Callable[[GpuUsage], float | None]], ...] = (
    ("utilization", "Share of time in which the GPU of a rank was busy.", lambda gpu: gpu.utilization),
    ("memory_used_bytes", "Memory in use on the GPU of a rank.", lambda gpu: gpu.memory_used_bytes),
    ("memory_total_bytes", "Memory of the GPU of a rank.", lambda gpu: gpu.memory_total_bytes),
    ("power_watts", "Power that the GPU of a rank draws.", lambda gpu: gpu.power_w),
    ("temperature_celsius", "Temperature of the GPU of a rank.", lambda gpu: gpu.temperature_c),
)


def usage_families(workers: Sequence[WorkerStatus]) -> Iterator[Metric]:
    """Of each rank of each worker, as old as its last report: ten seconds at most while it is connected."""
    labels = ["worker", "role", "rank"]
    cpu = CounterMetricFamily(
        "slipstream:worker_cpu_seconds", "Seconds of processors that the process of a rank has taken.", labels=labels
    )
    memory = GaugeMetricFamily(
        "slipstream:worker_resident_memory_bytes", "Memory that the process of a rank occupies.", labels=labels
    )
    gauges = [
        GaugeMetricFamily(f"slipstream:worker_gpu_{name}", about, labels=[*labels, "gpu_uuid"])
        for name, about, _ in GPU_GAUGES
    ]
    for worker in workers:
        for usage in worker.stats.usage if worker.stats is not None else ():
            who = [worker.peer.name, worker.role, str(usage.rank)]
            cpu.add_metric(who, usage.cpu_seconds)
            memory.add_metric(who, usage.resident_memory_bytes)
            for gpu in usage.gpus:
                _add_gpu(gauges, [*who, gpu.uuid], gpu)
    return iter((cpu, memory, *gauges))


def _add_gpu(gauges: Sequence[GaugeMetricFamily], labels: Sequence[str], gpu: GpuUsage) -> None:
    """Leaves out what the GPU does not say."""
    for gauge, (_, _, value_of) in zip(gauges, GPU_GAUGES, strict=True):
        value = value_of(gpu)
        if value is not None:
            gauge.add_metric(labels, value)
