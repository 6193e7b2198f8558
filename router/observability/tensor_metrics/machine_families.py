"""The machine's load as metrics."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.router.machine.gpu_reader import GpuReading
from slipstream.router.observability.tensor_metrics.machine_reading import MachineReading
from slipstream.router.observability.tensor_metrics.metric_lines import MetricLines

GPU_FAMILIES: tuple[tuple[str, str, str, Callable[[GpuReading], float | None]], ...] = (
    ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", "gauge", lambda gpu: gpu.utilization),
    ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", "gauge", lambda gpu: gpu.memory_total_bytes),
    ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", "gauge", lambda gpu: gpu.memory_used_bytes),
    ("nv_gpu_power_usage", "GPU power usage in watts", "gauge", lambda gpu: gpu.power_w),
    ("nv_gpu_power_limit", "GPU power management limit in watts", "gauge", lambda gpu: gpu.power_limit_w),
    ("nv_energy_consumption", "GPU energy consumption in joules since the start", "counter", lambda gpu: gpu.energy_j),
)


def add_machine_families(lines: MetricLines, machine: MachineReading) -> None:
    for name, description, kind, value_of in GPU_FAMILIES:
        values = [(gpu.uuid, value_of(gpu)) for gpu in machine.gpus]
        lines.family(name, description, kind, [([("gpu_uuid", uuid)], v) for uuid, v in values if v is not None])
    if machine.cpu_utilization is None:
        return
    for name, description, value in (
        ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", machine.cpu_utilization),
        ("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", machine.memory_total_bytes),
        ("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", machine.memory_used_bytes),
    ):
        lines.family(name, description, "gauge", [((), value)])
