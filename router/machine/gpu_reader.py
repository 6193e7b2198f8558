"""The load of NVIDIA's GPUs, by the library nvidia-ml-py where it is installed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

log = logging.getLogger(__name__)

GPU_LIBRARY = "pynvml"  # of the package nvidia-ml-py, which need not be there


@dataclass(frozen=True, slots=True)
class GpuReading:
    """None: the GPU does not say. `uuid` is the one that NVML, DCGM and `nvidia-smi -L` have. `utilization` is 0 to 1.
    `energy_j` counts from the first reading."""

    uuid: str
    utilization: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None


class GpuReader:
    """Asks NVIDIA's management library. Its calls may block for some milliseconds."""

    def __init__(self, library: ModuleType, handles: list[Any]) -> None:
        self._library = library
        self._handles = handles
        self._energy_at_start: dict[str, float] = {}

    @classmethod
    def of_this_machine(cls) -> GpuReader | None:
        """Of all GPUs. None if there is no GPU, or no library for it."""
        return cls._opened(_all_handles)

    @classmethod
    def of_gpu(cls, uuid: str) -> GpuReader | None:
        """Of this GPU. None if there is no such GPU, or no library for it."""
        return cls._opened(lambda library: iter((library.nvmlDeviceGetHandleByUUID(uuid),)))

    @classmethod
    def _opened(cls, find: Callable[[ModuleType], Iterator[Any]]) -> GpuReader | None:
        try:
            library = importlib.import_module(GPU_LIBRARY)
        except ImportError:
            return None
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            log.info("no metrics of GPUs: %s", error)
            return None
        try:
            return cls(library, list(find(library)))
        except library.NVMLError as error:
            log.warning("no metrics of GPUs: %s", error)
            library.nvmlShutdown()
            return None

    def read(self) -> tuple[GpuReading, ...]:
        """One that is lost is left out."""
        return tuple(reading for handle in self._handles if (reading := self._reading(handle)) is not None)

    def close(self) -> None:
        self._library.nvmlShutdown()

    def _reading(self, handle: Any) -> GpuReading | None:
        uuid = self._asked("nvmlDeviceGetUUID", handle)
        if uuid is None:
            return None
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
            temperature_c=self._asked("nvmlDeviceGetTemperature", handle, self._library.NVML_TEMPERATURE_GPU),
        )

    def _asked(self, question: str, *about: Any) -> Any:
        """None if this GPU cannot say."""
        try:
            return getattr(self._library, question)(*about)
        except self._library.NVMLError:
            return None


def _all_handles(library: ModuleType) -> Iterator[Any]:
    """Of all GPUs but those that have failed."""
    for index in range(library.nvmlDeviceGetCount()):
        try:
            yield library.nvmlDeviceGetHandleByIndex(index)
        except library.NVMLError as error:
            log.warning("no metrics of GPU %d: %s", index, error)
