"""The memory of a tensor."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.cluster.in_process.interface.errors import InvalidArgumentError
from slipstream.cluster.in_process.interface.kinds import MemoryType
from slipstream.workers.backends.python.model_api.tensors import dlpack
from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException

MEMORY_TYPES = {dlpack.CPU: MemoryType.CPU, dlpack.CUDA: MemoryType.GPU, dlpack.CUDA_HOST: MemoryType.CPU_PINNED}


@dataclass
class MemoryBuffer:
    """`size` bytes at the address `data_ptr`, which stay valid for as long as `owner` is referred to. `memory_type_id`
    is the number of the device."""

    data_ptr: int
    memory_type: MemoryType
    memory_type_id: int
    size: int
    owner: Any

    @staticmethod
    def from_dlpack(owner: Any) -> MemoryBuffer:
        """The memory of an object with `__dlpack__`, without a copy. Raises InvalidArgumentError."""
        return borrowed(owner)[2]

    @classmethod
    def of_array(cls, array: np.ndarray[Any, Any]) -> MemoryBuffer:
        """The memory of an array whose elements lie without gaps."""
        return cls(array.ctypes.data, MemoryType.CPU, 0, array.nbytes, array)

    @property
    def view(self) -> memoryview:
        """The bytes, which must be in host memory. It keeps the owner."""
        if not self.size:
            return memoryview(b"")
        memory: Any = (ctypes.c_uint8 * self.size).from_address(self.data_ptr)
        memory.owner = self.owner  # lives as long as any view of the memory
        return np.frombuffer(memory, np.uint8).data


def borrowed(value: Any) -> tuple[str, list[int], MemoryBuffer]:
    """The datatype, shape and memory of an object with `__dlpack__`. Raises InvalidArgumentError."""
    try:
        datatype, shape, memory = dlpack.memory_of(value)
    except (TritonModelException, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"Object does not support DLPack protocol: {error}") from None
    if isinstance(memory, dlpack.DeviceMemory):
        device_type, device_id = memory.device
        return (
            datatype,
            shape,
            MemoryBuffer(memory.address, MEMORY_TYPES[device_type], device_id, memory.nbytes, memory),
        )
    return datatype, shape, MemoryBuffer.of_array(memory)
