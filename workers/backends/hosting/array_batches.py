"""The inputs of requests, as the arrays of one batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.workers.backends.backend import BackendError
from slipstream.workers.backends.python.instance.memory.shared_files import SharedFiles
from slipstream.workers.backends.python.model_api.tensors import bytes_elements
from slipstream.workers.backends.python.model_api.tensors.datatypes import DTYPES

Array = np.ndarray[Any, Any]
BF16 = np.dtype(np.uint16)  # the bits of bfloat16, which numpy does not have
KEPT_FROM_BYTES = 1 << 20  # new memory of this size costs more than the copy: the kernel gives it page by page
KEPT_BYTES = 64 << 20


class ArrayBatches:
    """The arrays of a batch are valid until the next one.

    one request      its tensors, where they lie: in the frame, or in shared memory
    several          one array for each input, into which the rows of all requests are copied
    """

    def __init__(self, files: SharedFiles, *, is_batched: bool) -> None:
        self._files = files
        self._is_batched = is_batched
        self._buffers: dict[str, Array] = {}

    def arrays_of(self, requests: list[dict[str, Any]], payload: bytearray) -> tuple[dict[str, Array], list[int]]:
        """The inputs of the batch by name, and how many rows each request has. Raises BackendError, OSError or
        ValueError."""
        if len(requests) == 1:
            arrays = {fields[0]: self._array(fields, payload) for fields in requests[0]["inputs"]}
            return arrays, [self._num_rows(arrays)]
        each = [{fields[0]: self._array(fields, payload) for fields in request["inputs"]} for request in requests]
        names = each[0].keys()
        if any(arrays.keys() != names for arrays in each):
            raise BackendError("the requests of a batch must have the same inputs")
        joined = {name: self._joined(name, [arrays[name] for arrays in each]) for name in names}
        return joined, [self._num_rows(arrays) for arrays in each]

    def _num_rows(self, arrays: dict[str, Array]) -> int:
        if not self._is_batched:
            return 1
        for array in arrays.values():
            return int(array.shape[0])
        raise BackendError("a request has no inputs")

    def _array(self, fields: list[Any], payload: bytearray) -> Array:
        _, datatype, shape, place = fields
        dtype = DTYPES.get(datatype)
        if len(place) == 2:
            if dtype is not None:
                return np.ndarray(shape, dtype, payload, place[0])
            data: Any = memoryview(payload)[place[0] : place[0] + place[1]]
        else:
            data = self._files.bytes_at(*place) if place[2] else b""
        if datatype == "BYTES":
            return bytes_elements.as_array(data, shape)
        array = np.ndarray(shape, dtype or BF16, data)
        array.flags.writeable = False  # other requests may have the same tensor, and a retry needs it as it is
        return array

    def _joined(self, name: str, parts: list[Array]) -> Array:
        num_bytes = sum(part.nbytes for part in parts)
        try:
            if num_bytes < KEPT_FROM_BYTES or parts[0].dtype.hasobject:
                return np.concatenate(parts)
            shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
            return np.concatenate(
                parts, out=self._buffer(name, num_bytes)[:num_bytes].view(parts[0].dtype).reshape(shape)
            )
        except ValueError as error:
            raise BackendError(f"input '{name}' of the requests of a batch: {error}") from error

    def _buffer(self, name: str, num_bytes: int) -> Array:
        """Memory that is used again."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < num_bytes:
            buffer = np.empty(num_bytes, np.uint8)
            if num_bytes <= KEPT_BYTES:
                self._buffers[name] = buffer
        return buffer
