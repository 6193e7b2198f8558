"""Tensors of values of Python."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from slipstream.router.tensors.tensor import Tensor

FORMATS = {"INT32": "i", "UINT32": "I", "INT64": "q", "UINT64": "Q", "FP32": "f", "FP64": "d"}
Shape = tuple[int, ...]


def texts_tensor(name: str, shape: Shape, texts: Sequence[str | bytes]) -> Tensor:
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return Tensor(name, "BYTES", shape, b"".join([len(text).to_bytes(4, "little") + text for text in encoded]))


def numbers_tensor(name: str, datatype: str, shape: Shape, numbers: Sequence[float]) -> Tensor:
    return Tensor(name, datatype, shape, struct.pack(f"<{len(numbers)}{FORMATS[datatype]}", *numbers))
