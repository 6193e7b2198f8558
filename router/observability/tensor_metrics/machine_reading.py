"""The load of this machine's processors, memory and GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from slipstream.router.machine.gpu_reader import GpuReader, GpuReading


@dataclass(frozen=True, slots=True)
class MachineReading:
    """`cpu_utilization` is that since the reading before, of all processors, 0 to 1; None: it was not asked for."""

    cpu_utilization: float | None = None
    memory_total_bytes: int = 0
    memory_used_bytes: int = 0
    gpus: tuple[GpuReading, ...] = ()


class MachineReader:
    """All methods may block."""

    def __init__(self, *, reads_cpu: bool, reads_gpu: bool) -> None:
        self._reads_cpu = reads_cpu
        self._gpus = GpuReader.of_this_machine() if reads_gpu else None
        if reads_cpu:
            psutil.cpu_percent()  # from which the next one counts

    def read(self) -> MachineReading:
        gpus = self._gpus.read() if self._gpus is not None else ()
        if not self._reads_cpu:
            return MachineReading(gpus=gpus)
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        return MachineReading(psutil.cpu_percent() / 100, memory.total, used, gpus)

    def close(self) -> None:
        if self._gpus is not None:
            self._gpus.close()
