"""An input of a request as its message has it, without the bytes that lie elsewhere."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from tritonclient.grpc import service_pb2

from slipstream.router.api.kserve.grpc.messages.infer_parameters import MemoryReference, memory_reference
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.infer_error import InferError

MAX_REMEMBERED_BYTES = 256  # of an input's message; longer ones have contents, and differ each time
CONTENTS_DATATYPES = {  # the datatypes that each field may hold; errors name the last one
    "bool_contents": ("BOOL",),
    "int_contents": ("INT8", "INT16", "INT32"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT8", "UINT16", "UINT32"),
    "uint64_contents": ("UINT64",),
    "fp32_contents": ("FP32",),
    "fp64_contents": ("FP64",),
    "bytes_contents": ("BYTES",),
}


@dataclass(frozen=True, slots=True)
class InferInput:
    """`contents` are elements in the message itself, in the field of this name: (field, elements)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    memory: MemoryReference | None = None
    contents: tuple[str, tuple[bool | int | float | bytes, ...]] | None = None


def infer_input(message: bytes | memoryview) -> InferInput:
    """An `InferInputTensor`. Raises InferError, and DecodeError if it is none."""
    return _remembered_input(bytes(message)) if len(message) <= MAX_REMEMBERED_BYTES else _parsed_input(message)


def _parsed_input(message: bytes | memoryview) -> InferInput:
    parsed = service_pb2.ModelInferRequest.InferInputTensor.FromString(message)
    memory = memory_reference(parsed.name, parsed.parameters) if parsed.parameters else None
    contents = None
    if parsed.HasField("contents"):
        contents = next(
            ((field, tuple(elements)) for field in CONTENTS_DATATYPES if (elements := getattr(parsed.contents, field))),
            None,
        )
    return InferInput(parsed.name, parsed.datatype, tuple(parsed.shape), memory, contents)


_remembered_input = lru_cache(maxsize=1024)(_parsed_input)


def contents_data(tensor: InferInput, model: str) -> bytes:
    """The bytes of the elements in the message. Raises InferError."""
    if tensor.contents is None:
        raise InferError(f"unable to find data for input tensor '{tensor.name}' for model '{model}' in request.")
    field, elements = tensor.contents
    datatypes = CONTENTS_DATATYPES[field]
    if tensor.datatype not in datatypes:
        raise InferError(
            f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model}' of type"
            f" '{datatypes[-1]}', expected datatype '{tensor.datatype}'"
        )
    if field == "bytes_contents":
        return _length_prefixed(elements)
    widest, exact = (DATATYPES[name].numpy_name for name in (datatypes[-1], tensor.datatype))
    # Numbers that do not fit the datatype lose their upper bits.
    return np.array(elements, dtype=widest).astype(exact).tobytes()


def _length_prefixed(elements: Iterable[bool | int | float | bytes]) -> bytes:
    parts: list[bytes] = []
    for element in elements:
        assert isinstance(element, bytes)
        parts += (struct.pack("<I", len(element)), element)
    return b"".join(parts)
