"""The load of this machine's processors, memory and GPUs."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import psutil

log = logging.getLogger(__name__)

GPU_LIBRARY = "pynvml"  # of the package nvidia-ml-py, which need not be there


@dataclass(frozen=True, slots=True)
class GpuReading:
    """None: the GPU does not say. `energy_j` counts from the first reading."""

    uuid: str
    utilization: float | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None


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


class GpuReader:
    """Asks NVIDIA's management library."""

    def __init__(self, library: ModuleType, handles: list[Any]) -> None:
        self._library = library
        self._handles = handles
        self._energy_at_start: dict[str, float] = {}

    @classmethod
    def of_this_machine(cls) -> GpuReader | None:
        """None if there is no GPU, or no library for it."""
        try:
            library = importlib.import_module(GPU_LIBRARY)
            library.nvmlInit()
        except ImportError:
            return None
        except library.NVMLError as error:
            log.info("no metrics of GPUs: %s", error)
            return None
        return cls(
            library, [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        )

    def read(self) -> tuple[GpuReading, ...]:
        return tuple(self._reading(handle) for handle in self._handles)

    def close(self) -> None:
        self._library.nvmlShutdown()

    def _reading(self, handle: Any) -> GpuReading:
        library = self._library
        uuid = library.nvmlDeviceGetUUID(handle)
        memory = self._asked("nvmlDeviceGetMemoryInfo", handle)
        utilization = self._asked("nvmlDeviceGetUtilizationRates", handle)
        power_mw = self._asked("nvmlDeviceGetPowerUsage", handle)
        limit_mw = self._asked("nvmlDeviceGetPowerManagementLimit", handle)
        energy_mj = self._asked("nvmlDeviceGetTotalEnergyConsumption", handle)
        energy_j = None
        if energy_mj is not None:
            energy_j = energy_mj / 1e3 - self._energy_at_start.setdefault(uuid, energy_mj / 1e3)
        return GpuReading(
            uuid=uuid.decode() if isinstance(uuid, bytes) else uuid,
            utilization=utilization.gpu / 100 if utilization is not None else None,
            memory_total_bytes=memory.total if memory is not None else None,
            memory_used_bytes=memory.used if memory is not None else None,
            power_w=power_mw / 1e3 if power_mw is not None else None,
            power_limit_w=limit_mw / 1e3 if limit_mw is not None else None,
            energy_j=energy_j,
        )

    def _asked(self, question: str, handle: Any) -> Any:
        """None if this GPU cannot say."""
        try:
            return getattr(self._library, question)(handle)
        except self._library.NVMLError:
            return None
