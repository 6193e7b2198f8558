"""The elements of BYTES tensors: each with its length before it (uint32, little endian)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

LENGTH = struct.Struct("<I")


def serialize(array: np.ndarray[Any, Any]) -> bytes:
    """The bytes of an array of objects or of `bytes`, in row-major order. What is not `bytes` goes as the UTF-8 of its
    text."""
    pack = LENGTH.pack
    parts = []
    for element in array.ravel().tolist():
        data = element if type(element) is bytes else str(element).encode("utf-8")
        parts.append(pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def deserialize(data: Any) -> list[bytes]:
    """The elements. Raises struct.error if an element ends behind the data."""
    view = memoryview(data)
    end = len(view)
    unpack_from = LENGTH.unpack_from
    elements = []
    position = 0
    while position < end:
        if position + 4 > end:
            raise struct.error(f"BYTES tensor: the length at byte {position} is not complete")
        start = position + 4
        position = start + unpack_from(view, position)[0]
        if position > end:
            raise struct.error(f"BYTES tensor: the element at byte {start} ends {position - end} bytes behind the data")
        elements.append(bytes(view[start:position]))
    return elements


def as_array(data: Any, shape: list[int]) -> np.ndarray[Any, Any]:
    """An array of `bytes` objects."""
    elements = deserialize(data)
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array.reshape(shape)
