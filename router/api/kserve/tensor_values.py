"""The numbers in the bytes of a tensor."""

from __future__ import annotations

from typing import Literal

INTEGERS: dict[str, Literal["B", "H", "I", "Q", "b", "h", "i", "q"]] = {
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
}
FLOATS: dict[str, Literal["f", "d"]] = {"FP32": "f", "FP64": "d"}


def numbers_in(data: memoryview, datatype: str) -> memoryview[int] | memoryview[float] | None:
    """`data`, bytes, as what they stand for, without a copy; None if Python has no name for the datatype."""
    if datatype in FLOATS:
        return data.cast(FLOATS[datatype])
    return data.cast(INTEGERS[datatype]) if datatype in INTEGERS else None
