"""A tensor: a name, and an array or memory that holds its elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.workers.backends.python.model_api.tensors import bytes_elements, dlpack
from slipstream.workers.backends.python.model_api.tensors.datatypes import DTYPES, NAMES_OF_DTYPES, NUMBERS, datatype_of
from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException
from slipstream.workers.backends.python.model_api.tensors.text import text_of


class Tensor:
    """`Tensor(name, array)` is what a model makes. Tensors that come from the server, and those of DLPack, have `_data`
    instead, and their array only when it is asked for.

    `_data` is memory of `_num_bytes` bytes from `_offset` on (an object with the buffer protocol), or an array of bytes
    that DLPack lent. A tensor with both has an array that shows this memory.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("_array", "_data", "_datatype", "_name", "_num_bytes", "_offset", "_shape")

    def __init__(self, name: str, numpy_array: np.ndarray[Any, Any]) -> None:
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(f"Tensor(): numpy_array must be a numpy.ndarray, got {type(numpy_array).__name__}")
        if type(name) is not str:
            name = text_of(name, "Tensor(): name")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        datatype = NAMES_OF_DTYPES.get(numpy_array.dtype) or datatype_of(numpy_array.dtype)
        if datatype is None:
            raise TritonModelException("NumPy dtype is not supported.")
        if not numpy_array.flags.c_contiguous:
            numpy_array = np.ascontiguousarray(numpy_array)
        self._name = name
        self._array: np.ndarray[Any, Any] | None = numpy_array
        self._datatype = datatype
        self._shape: Any = numpy_array.shape
        self._data: Any = None
        self._offset = 0
        self._num_bytes = 0

    @classmethod
    def of_memory(cls, name: str, datatype: str, shape: list[int], data: Any, offset: int, num_bytes: int) -> Tensor:
        """A tensor whose elements lie in memory. The tensor, its array and what is made of it keep that
        memory."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._data = data
        tensor._offset = offset
        tensor._num_bytes = num_bytes
        tensor._array = None
        return tensor

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self._shape)

    def triton_dtype(self) -> int:
        return NUMBERS[self._datatype]

    def is_cpu(self) -> bool:
        """Whether the elements lie in host memory."""
        return not isinstance(self._data, dlpack.DeviceMemory)

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """The elements. The array may be written to; neither the client nor another request sees it."""
        array = self._array
        if array is not None:
            return array
        if isinstance(self._data, dlpack.DeviceMemory):
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        dtype = DTYPES.get(self._datatype)
        if dtype is not None:
            array = np.ndarray(self._shape, dtype, self._data, self._offset)
        elif self._datatype == "BYTES":
            array = bytes_elements.as_array(self.memory(), self._shape)
        else:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        self._array = array
        return array

    def to_dlpack(self) -> Any:
        """A DLPack capsule of the elements, without a copy."""
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        if isinstance(self._data, dlpack.DeviceMemory):
            return self._data.capsule(self._datatype, list(self._shape))
        return dlpack.capsule_of(self.memory(), self._datatype, list(self._shape))

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._data.device if isinstance(self._data, dlpack.DeviceMemory) else (dlpack.CPU, 0)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor of what another framework has, without a copy: of a DLPack capsule, or of an object with
        `__dlpack__`."""
        name = text_of(name, "from_dlpack(): name")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        datatype, shape, memory = dlpack.memory_of(tensor)
        return Tensor.of_memory(name, datatype, shape, memory, 0, memory.nbytes)

    def memory(self) -> Any:
        """The elements as they travel, in an object with the buffer protocol; without a copy where that is possible."""
        data = self._data
        if data is None:
            array = self._array
            assert array is not None, self._name
            if self._datatype == "BYTES":
                return bytes_elements.serialize(array)
            return array
        if isinstance(data, dlpack.DeviceMemory):
            return data.to_host()
        return memoryview(data).cast("B")[self._offset : self._offset + self._num_bytes]
