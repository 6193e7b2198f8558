"""A module as `pynvml` is, of the package nvidia-ml-py: its names, its arguments, the types that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

NOT_SUPPORTED, GPU_IS_LOST, NOT_FOUND, NO_DRIVER = 3, 15, 6, 9


class FakeNvmlError(Exception):
    """NVMLError has the number of the driver's error."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@dataclass(slots=True)
class FakeGpu:
    """`fails`: what it answers to a function, by its name, instead of a value."""

    uuid: str
    utilization_percent: int = 25
    memory: tuple[int, int] = (1000, 10)  # total, used
    power_mw: int = 30_500
    limit_mw: int = 70_000
    energies_mj: list[int] = field(default_factory=lambda: [5_000])  # the last one again and again
    temperature_c: int = 41
    fails: dict[str, int] = field(default_factory=dict)


class FakeNvml(ModuleType):
    """To be put into `sys.modules` as pynvml. Handles are the GPUs. `num_open`: inits without a shutdown."""

    NVMLError = FakeNvmlError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *gpus: FakeGpu, has_driver: bool = True) -> None:
        super().__init__("pynvml")
        self.gpus = gpus
        self.has_driver = has_driver
        self.num_open = 0

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name, as those below
        if not self.has_driver:
            raise FakeNvmlError(NO_DRIVER)
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.num_open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        return self._answering(self.gpus[index], "nvmlDeviceGetHandleByIndex")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:  # noqa: N802
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise FakeNvmlError(NOT_FOUND)

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:  # noqa: N802
        return self._answering(handle, "nvmlDeviceGetUUID").uuid

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int | None = None) -> SimpleNamespace:  # noqa: N802
        total, used = self._answering(handle, "nvmlDeviceGetMemoryInfo").memory
        return SimpleNamespace(total=total, free=total - used, used=used)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(
            gpu=self._answering(handle, "nvmlDeviceGetUtilizationRates").utilization_percent, memory=1
        )

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:  # noqa: N802
        return self._answering(handle, "nvmlDeviceGetPowerUsage").power_mw

    def nvmlDeviceGetPowerManagementLimit(self, handle: FakeGpu) -> int:  # noqa: N802
        return self._answering(handle, "nvmlDeviceGetPowerManagementLimit").limit_mw

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: FakeGpu) -> int:  # noqa: N802
        energies_mj = self._answering(handle, "nvmlDeviceGetTotalEnergyConsumption").energies_mj
        return energies_mj.pop(0) if len(energies_mj) > 1 else energies_mj[0]

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:  # noqa: N802
        assert sensor == self.NVML_TEMPERATURE_GPU
        return self._answering(handle, "nvmlDeviceGetTemperature").temperature_c

    def _answering(self, gpu: FakeGpu, function: str) -> FakeGpu:
        if function in gpu.fails:
            raise FakeNvmlError(gpu.fails[function])
        return gpu
