"""The inputs of a tensor request as values of Python, row by row."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from slipstream.router.api.kserve.tensor_values import numbers_in
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.tensor import Tensor

LENGTH = struct.Struct("<I")  # before each element of BYTES


class RequestValues:
    """Of a request that has been checked. Each input has the same number of elements in all of the `num_rows` rows. A
    row of an input that was not given, or that is empty, has no values; `one` says what counts then."""

    def __init__(self, request: InferRequest, num_rows: int) -> None:
        self.num_rows = num_rows
        self._tensors = {tensor.name: tensor for tensor in request.inputs}
        self._values: dict[str, Sequence[Any]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def row(self, name: str, row: int) -> Sequence[Any]:
        """Numbers, booleans, or texts as bytes."""
        tensor = self._tensors.get(name)
        if tensor is None:
            return ()
        values = self._values.get(name)
        if values is None:
            values = self._values[name] = values_of(tensor)
        size = len(values) // self.num_rows
        return values[row * size : (row + 1) * size]

    def one(self, name: str, row: int, default: Any = None) -> Any:
        """The first value of a row."""
        values = self.row(name, row)
        return values[0] if len(values) else default

    def text(self, name: str, row: int) -> str:
        """ "" if it was not given. Raises InferError."""
        return text_of(name, self.one(name, row, b""))

    def texts(self, name: str, row: int) -> list[str]:
        """Those of a row that are not empty: clients send empty ones for none. Raises InferError."""
        return [text_of(name, value) for value in self.row(name, row) if value]


def values_of(tensor: Tensor) -> Sequence[Any]:
    """All elements of a tensor, flat."""
    view, datatype = tensor.view, tensor.datatype
    if datatype == "BYTES":
        return elements_of(view)
    if datatype == "BOOL":
        return [value != 0 for value in view]
    if datatype == "FP16":
        return struct.unpack(f"<{len(view) // 2}e", view)
    numbers = numbers_in(view, datatype)
    if numbers is None:
        raise InferError(f"input '{tensor.name}' has data-type '{datatype}', which a language model does not take")
    return numbers.tolist()


def elements_of(view: memoryview) -> list[bytes]:
    """The elements of a tensor of BYTES."""
    elements, position = [], 0
    while position < len(view):
        begin = position + LENGTH.size
        position = begin + LENGTH.unpack_from(view, position)[0]
        elements.append(bytes(view[begin:position]))
    return elements


def text_of(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InferError(f"input '{name}' is no UTF-8: {error.reason} at byte {error.start}") from None
