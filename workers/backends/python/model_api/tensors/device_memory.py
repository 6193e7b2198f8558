"""Memory of a GPU, by the CUDA driver, for tensors that a model leaves there."""

from __future__ import annotations

import ctypes

from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException


def driver(device_id: int) -> ctypes.CDLL:
    """The driver's library, with the primary context of a device as this thread's."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise TritonModelException(f"A tensor on GPU {device_id}, but CUDA's driver cannot be used: {error}") from error
    device = ctypes.c_int()
    context = ctypes.c_void_p()
    check(library.cuInit(0), "cuInit")
    check(library.cuDeviceGet(ctypes.byref(device), device_id), "cuDeviceGet")
    check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(library.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    return library


def synchronize(device_id: int) -> None:
    """Waits for the device's work."""
    check(driver(device_id).cuCtxSynchronize(), "cuCtxSynchronize")


def copy_to_host(address: int, num_bytes: int, device_id: int) -> bytearray:
    library = driver(device_id)
    target = bytearray(num_bytes)
    if num_bytes:
        check(library.cuCtxSynchronize(), "cuCtxSynchronize")
        place = (ctypes.c_uint8 * num_bytes).from_buffer(target)
        copy = library.cuMemcpyDtoH_v2(place, ctypes.c_uint64(address), ctypes.c_size_t(num_bytes))
        check(copy, "cuMemcpyDtoH")
    return target


def check(result: int, call: str) -> None:
    if result != 0:
        raise TritonModelException(f"{call} failed with CUDA error {result}")
