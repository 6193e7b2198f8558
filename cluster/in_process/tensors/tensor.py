"""A tensor of a program: an input that it gives, or an output that it gets."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slipstream.cluster.in_process.interface.errors import InvalidArgumentError, UnsupportedError
from slipstream.cluster.in_process.interface.kinds import DataType, DLDeviceType, MemoryType
from slipstream.cluster.in_process.tensors.device import DeviceOrMemoryType, device_of
from slipstream.cluster.in_process.tensors.memory_buffer import MemoryBuffer, borrowed
from slipstream.workers.backends.python.model_api.tensors import bytes_elements, dlpack
from slipstream.workers.backends.python.model_api.tensors.datatypes import DTYPES, datatype_of

DL_DEVICE_OF = {
    MemoryType.CPU: DLDeviceType.kDLCPU,
    MemoryType.CPU_PINNED: DLDeviceType.kDLCPU,
    MemoryType.GPU: DLDeviceType.kDLCUDA,
}
ON_HOST = (MemoryType.CPU, MemoryType.CPU_PINNED)


@dataclass
class Tensor:
    """`shape` with the elements in row-major order, little endian; each element of BYTES has its length before it.
    numpy, torch and others read it by DLPack (`numpy.from_dlpack(tensor)`), which copies nothing, or by
    `numpy.asarray`."""

    data_type: DataType
    shape: Sequence[int]
    memory_buffer: MemoryBuffer

    @property
    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.memory_buffer.data_ptr

    @property
    def memory_type(self) -> MemoryType:
        return self.memory_buffer.memory_type

    @property
    def memory_type_id(self) -> int:
        """The number of the device."""
        return self.memory_buffer.memory_type_id

    @property
    def size(self) -> int:
        """In bytes."""
        return self.memory_buffer.size

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        """A capsule of the elements, without a copy. Raises InvalidArgumentError for BYTES, which DLPack does not
        have."""
        if self.data_type is DataType.BYTES:
            raise InvalidArgumentError("DLPack does not support tensors of BYTES; use to_bytes_array()")
        if self.memory_type in ON_HOST and stream not in (None, 0):
            raise UnsupportedError(
                f"DLPack stream synchronization on memory type {self.memory_type} and stream {stream} not supported"
            )
        device_type, device_id = self.__dlpack_device__()
        shape = [int(size) for size in self.shape]
        return dlpack.lend(self.data_ptr, (int(device_type), device_id), self.data_type.name, shape, self)

    def __dlpack_device__(self) -> tuple[DLDeviceType, int]:
        return DL_DEVICE_OF[self.memory_type], self.memory_type_id

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.to_bytes_array() if self.data_type is DataType.BYTES else np.from_dlpack(self.to_host())
        if dtype is not None:
            array = array.astype(dtype, copy=bool(copy))
        return array.copy() if copy else array

    def to_bytes_array(self) -> np.ndarray[Any, Any]:
        """The elements of BYTES, as `bytes` objects. Raises InvalidArgumentError for others."""
        if self.data_type is not DataType.BYTES:
            raise InvalidArgumentError(f"Tensor has data type {self.data_type!r} not {DataType.BYTES!r}")
        try:
            return bytes_elements.as_array(self.to_host().memory_buffer.view, list(self.shape))
        except (struct.error, ValueError) as error:
            raise InvalidArgumentError(
                f"the bytes are no tensor of BYTES and shape {list(self.shape)}: {error}"
            ) from None

    def to_string_array(self) -> np.ndarray[Any, Any]:
        """The elements of BYTES as text, which is UTF-8. Raises InvalidArgumentError for others."""
        elements = self.to_bytes_array()
        return np.array([element.decode() for element in elements.ravel()], np.str_).reshape(elements.shape)

    def to_host(self) -> Tensor:
        """It itself, or a copy in host memory."""
        return self.to_device(MemoryType.CPU)

    def to_device(self, device: DeviceOrMemoryType) -> Tensor:
        """It itself if it lies there, or a copy. Raises InvalidArgumentError for no device, UnsupportedError for one
        that is not there."""
        wanted = device_of(device)
        here = (self.memory_type, self.memory_type_id)
        if wanted == here or (self.memory_type in ON_HOST and wanted[0] is MemoryType.CPU):
            return self
        try:
            return Tensor(self.data_type, self.shape, self._moved(*wanted))
        except (ImportError, RuntimeError, AssertionError, ValueError) as error:
            raise UnsupportedError(f"Conversion from {here} to {wanted} not supported. {error}") from None

    def _moved(self, memory_type: MemoryType, device_id: int) -> MemoryBuffer:
        import torch  # which takes a second, and others do not need it

        flat = torch.utils.dlpack.from_dlpack(Tensor(DataType.UINT8, [self.size], self.memory_buffer))
        if memory_type is MemoryType.CPU_PINNED:
            return replace(MemoryBuffer.from_dlpack(flat.cpu().pin_memory()), memory_type=memory_type)
        target = "cpu" if memory_type is MemoryType.CPU else f"cuda:{device_id}"
        return MemoryBuffer.from_dlpack(flat.to(target))

    @staticmethod
    def from_dlpack(obj: Any) -> Tensor:
        """The memory of an object with `__dlpack__`, without a copy. Raises InvalidArgumentError."""
        datatype, shape, memory = borrowed(obj)
        return Tensor(DataType[datatype], shape, memory)

    @staticmethod
    def from_string_array(string_array: Any) -> Tensor:
        """A tensor of BYTES from a list or an array of texts. Raises InvalidArgumentError."""
        return Tensor.from_bytes_array(string_array)

    @staticmethod
    def from_bytes_array(bytes_array: Any) -> Tensor:
        """A tensor of BYTES from a list or an array of texts or `bytes`. Raises InvalidArgumentError."""
        tensor = tensor_of(bytes_array)
        if tensor.data_type is not DataType.BYTES:
            raise InvalidArgumentError(
                f"Unsupported conversion from {bytes_array} to Triton BYTES Tensor. Got {tensor.data_type!r}"
            )
        return tensor


def tensor_of(value: Any) -> Tensor:
    """A tensor of what a program gives as an input: a Tensor, a numpy array or scalar, a list, or what has
    `__dlpack__`. Raises InvalidArgumentError."""
    match value:
        case Tensor():
            return value
        case np.ndarray() | np.generic():
            return _of_array(np.asarray(value))
        case list() | tuple():
            try:
                return _of_array(np.array(value))
            except (ValueError, InvalidArgumentError) as error:
                raise InvalidArgumentError(f"Conversion from {value} to tensor not supported.") from error
    if hasattr(value, "__dlpack__"):
        return Tensor.from_dlpack(value)
    raise InvalidArgumentError(
        f"Input type {type(value)} not supported. Must be a Tensor, a numpy array or a list, or the type must support "
        "__dlpack__"
    )


def tensor_of_bytes(datatype: str, shape: Sequence[int], view: memoryview) -> Tensor:
    """A tensor with a copy of the bytes."""
    copied = np.frombuffer(view, np.uint8).copy()
    return Tensor(DataType[datatype], list(shape), MemoryBuffer.of_array(copied))


def _of_array(array: np.ndarray[Any, Any]) -> Tensor:
    datatype = "BYTES" if array.dtype.kind == "U" else datatype_of(array.dtype)
    if datatype is None:
        raise InvalidArgumentError(
            f"Unsupported Numpy data type. Can't convert {array.dtype} to Triton server data type"
        )
    if datatype == "BYTES":
        memory = np.frombuffer(bytes_elements.serialize(array), np.uint8)
    else:
        memory = np.ascontiguousarray(array, DTYPES[datatype])  # little endian, too
    return Tensor(DataType[datatype], array.shape, MemoryBuffer.of_array(memory))
