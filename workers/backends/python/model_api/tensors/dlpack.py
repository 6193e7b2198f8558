"""Tensors of other frameworks, by DLPack: their memory is lent, not copied.

A producer fills a `DLManagedTensor` and gives it away in a capsule; its deleter is called when the consumer does not
need the memory any more. See https://dmlc.github.io/dlpack/latest/c_api.html.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from slipstream.workers.backends.python.model_api.tensors import device_memory
from slipstream.workers.backends.python.model_api.tensors.datatypes import DLPACK_TYPES, NAMES_OF_DLPACK_TYPES
from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException

CPU, CUDA, CUDA_HOST = 1, 2, 3
NAME, USED_NAME = b"dltensor", b"used_dltensor"


class DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class ManagedTensor(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(ManagedTensor))
DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
ManagedTensor._fields_ = (("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", DELETER))

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, DESTRUCTOR)
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype = ctypes.c_void_p
capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
set_capsule_name = ctypes.pythonapi.PyCapsule_SetName
set_capsule_name.restype = ctypes.c_int
set_capsule_name.argtypes = (ctypes.py_object, ctypes.c_char_p)
# For a capsule that is being destroyed, which must not become a Python object again.
dying_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

# What was lent, by the address of its ManagedTensor: it lives until the consumer's deleter.
LENT: dict[int, tuple[Any, ...]] = {}


def end_loan(managed: Any) -> None:
    LENT.pop(ctypes.addressof(managed.contents), None)


def end_capsule(capsule: int) -> None:
    """A capsule without a consumer takes its loan with it."""
    if dying_is_valid(capsule, NAME):
        LENT.pop(dying_pointer(capsule, NAME), None)


end_of_loan = DELETER(end_loan)
end_of_capsule = DESTRUCTOR(end_capsule)


def capsule_of(memory: Any, datatype: str, shape: list[int]) -> Any:
    """Lends host memory."""
    flat = np.frombuffer(memory, dtype=np.uint8) if memoryview(memory).nbytes else np.empty(0, dtype=np.uint8)
    return lend(flat.ctypes.data, (CPU, 0), datatype, shape, flat)


def lend(address: int, device: tuple[int, int], datatype: str, shape: list[int], owner: Any) -> Any:
    """A capsule for memory that `owner` keeps."""
    dims = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    managed = ManagedTensor()
    tensor = managed.dl_tensor
    tensor.data = address
    tensor.device = DLDevice(*device)
    tensor.ndim = len(shape)
    tensor.dtype = DLDataType(*DLPACK_TYPES[datatype], 1)
    tensor.shape = ctypes.cast(dims, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = None
    tensor.byte_offset = 0
    managed.deleter = end_of_loan
    LENT[ctypes.addressof(managed)] = (managed, dims, owner)
    return new_capsule(ctypes.addressof(managed), NAME, end_of_capsule)


class Borrowed:
    """The right to use a producer's memory; it ends with this object."""

    __slots__ = ("_managed",)

    def __init__(self, managed: Any) -> None:
        self._managed = managed

    def __del__(self) -> None:
        if self._managed.contents.deleter:
            self._managed.contents.deleter(self._managed)


class DeviceMemory:
    """Borrowed memory of a GPU."""

    __slots__ = ("_borrowed", "address", "device", "nbytes")

    def __init__(self, address: int, nbytes: int, device: tuple[int, int], borrowed: Borrowed) -> None:
        self.address = address
        self.nbytes = nbytes
        self.device = device
        self._borrowed = borrowed

    def capsule(self, datatype: str, shape: list[int]) -> Any:
        return lend(self.address, self.device, datatype, shape, self)

    def to_host(self) -> bytearray:
        """A copy in host memory."""
        return device_memory.copy_to_host(self.address, self.nbytes, self.device[1])


def memory_of(tensor: Any) -> tuple[str, list[int], Any]:
    """The datatype, shape and memory of a capsule or object with `__dlpack__`: an array of bytes, or DeviceMemory."""
    capsule = tensor if type(tensor).__name__ == "PyCapsule" else exported(tensor)
    managed = ctypes.cast(capsule_pointer(capsule, NAME), ctypes.POINTER(ManagedTensor))
    described = managed.contents.dl_tensor
    shape = [described.shape[axis] for axis in range(described.ndim)]
    if described.strides and not is_contiguous(shape, [described.strides[axis] for axis in range(described.ndim)]):
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    dtype = described.dtype
    datatype = NAMES_OF_DLPACK_TYPES.get((dtype.code, dtype.bits)) if dtype.lanes == 1 else None
    if datatype is None:
        raise TritonModelException(
            f"DLPack type code {dtype.code} with {dtype.bits} bits and {dtype.lanes} lanes is not supported."
        )
    device = (described.device.device_type, described.device.device_id)
    check_device(device[0])
    num_bytes = math.prod(shape) * ((dtype.bits + 7) // 8)
    address = (described.data or 0) + described.byte_offset
    set_capsule_name(capsule, USED_NAME)  # the memory is ours to give back from here on
    borrowed = Borrowed(managed)
    if device[0] == CUDA:
        return datatype, shape, DeviceMemory(address, num_bytes, device, borrowed)
    return datatype, shape, host_memory(address, num_bytes, borrowed)


def exported(tensor: Any) -> Any:
    """The capsule of another framework's tensor, whose pending work is done."""
    export = getattr(tensor, "__dlpack__", None)
    find_device = getattr(tensor, "__dlpack_device__", None)
    if export is None or find_device is None:
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
            "`__dlpack_device__` attributes"
        )
    device_type, device_id = find_device()
    check_device(int(device_type))
    if device_type == CUDA:
        capsule = export(stream=1)  # the legacy default stream
        device_memory.synchronize(int(device_id))
        return capsule
    return export()


def check_device(device_type: int) -> None:
    if device_type not in (CPU, CUDA, CUDA_HOST):
        raise TritonModelException(f"DLDevice type {device_type} is not support by Python backend.")


def is_contiguous(shape: list[int], strides: list[int]) -> bool:
    """Whether the elements lie in row-major order without gaps; `strides` count elements."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def host_memory(address: int, num_bytes: int, borrowed: Borrowed) -> np.ndarray[Any, Any]:
    if not num_bytes:
        return np.empty(0, dtype=np.uint8)
    memory: Any = (ctypes.c_uint8 * num_bytes).from_address(address)
    memory.borrowed = borrowed  # lives as long as any view of the memory
    return np.frombuffer(memory, dtype=np.uint8)
