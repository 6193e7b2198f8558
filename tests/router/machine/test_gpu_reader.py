"""GPUs as NVIDIA's management library shows them, with a stand-in for it."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import replace

import pytest

from slipstream.router.machine import gpu_reader
from slipstream.router.machine.gpu_reader import GpuReader, GpuReading
from tests.support.router.fake_nvml import GPU_IS_LOST, NOT_SUPPORTED, FakeGpu, FakeNvml

FULL = GpuReading("GPU-7", 0.25, 1000, 10, 30.5, 70.0, 0.0, 41)


def installed(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu, has_driver: bool = True) -> FakeNvml:
    library = FakeNvml(*gpus, has_driver=has_driver)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def of_machine() -> GpuReader:
    reader = GpuReader.of_this_machine()
    assert reader is not None
    return reader


def test_energy_counts_from_the_first_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeGpu("GPU-7", energies_mj=[5_000, 12_000]))
    reader = of_machine()
    assert reader.read() == (FULL,)
    assert reader.read() == (replace(FULL, energy_j=7.0),)


def test_what_a_gpu_cannot_say_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("UtilizationRates", "PowerUsage", "PowerManagementLimit", "TotalEnergyConsumption", "Temperature")
    installed(monkeypatch, FakeGpu("MIG-1", fails={f"nvmlDeviceGet{name}": NOT_SUPPORTED for name in asked}))
    assert of_machine().read() == (GpuReading("MIG-1", None, 1000, 10),)


def test_a_gpu_that_is_lost_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    lost_later = FakeGpu("GPU-8")
    installed(
        monkeypatch, FakeGpu("GPU-6", fails={"nvmlDeviceGetHandleByIndex": GPU_IS_LOST}), FakeGpu("GPU-7"), lost_later
    )
    reader = of_machine()
    assert [one.uuid for one in reader.read()] == ["GPU-7", "GPU-8"]
    lost_later.fails["nvmlDeviceGetUUID"] = GPU_IS_LOST
    assert [one.uuid for one in reader.read()] == ["GPU-7"]


def test_one_gpu_is_found_by_its_uuid_and_the_library_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    library = installed(monkeypatch, FakeGpu("GPU-6"), FakeGpu("GPU-7"))
    reader = GpuReader.of_gpu("GPU-7")
    assert reader is not None
    assert reader.read() == (FULL,)
    assert library.num_open == 1
    reader.close()
    assert GpuReader.of_gpu("GPU-9") is None
    assert library.num_open == 0


def test_without_a_driver_or_the_package_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeGpu("GPU-7"), has_driver=False)
    assert GpuReader.of_this_machine() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuReader.of_this_machine() is None
    assert GpuReader.of_gpu("GPU-7") is None


def test_the_real_package_has_all_that_is_used_of_it() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (pip install -e '.[nvml]')")
    used = set(re.findall(r"\b(?:nvml[A-Z]\w+|NVML\w+)", inspect.getsource(gpu_reader)))
    assert {"nvmlInit", "nvmlDeviceGetHandleByUUID", "NVMLError", "NVML_TEMPERATURE_GPU"} <= used
    assert {name for name in used if not hasattr(pynvml, name)} == set()


def test_the_stand_in_is_called_as_the_real_package_is() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (pip install -e '.[nvml]')")
    functions = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert len(functions) > 8
    for name in functions:
        ours = list(inspect.signature(getattr(FakeNvml(), name)).parameters)
        assert ours == list(inspect.signature(getattr(pynvml, name)).parameters), name
    assert {"total", "used"} <= {name for name, _ in pynvml.c_nvmlMemory_t._fields_}
    assert "gpu" in {name for name, _ in pynvml.c_nvmlUtilization_t._fields_}
    assert issubclass(pynvml.NVMLError, Exception)
    assert pynvml.NVML_TEMPERATURE_GPU == FakeNvml.NVML_TEMPERATURE_GPU
