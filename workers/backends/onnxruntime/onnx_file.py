"""The inputs and outputs of an ONNX file, as the session that was made of it says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import onnxruntime

from slipstream.workers.backends.file_checks import WILDCARD, FileTensor

# ONNX Runtime's name of a type -> that of a configuration.
DATATYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
    "tensor(bfloat16)": "TYPE_BF16",
}


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """`overridable` are inputs with a value in the file, which a request may replace."""

    inputs: dict[str, FileTensor]
    overridable: dict[str, FileTensor]
    outputs: dict[str, FileTensor]

    @classmethod
    def of(cls, session: onnxruntime.InferenceSession) -> OnnxFile:
        return cls(
            tensors(session.get_inputs()),
            tensors(session.get_overridable_initializers()),
            tensors(session.get_outputs()),
        )


def tensors(arguments: Iterable[Any]) -> dict[str, FileTensor]:
    return {
        argument.name: FileTensor(argument.name, DATATYPES.get(argument.type, argument.type), shape_of(argument.shape))
        for argument in arguments
    }


def shape_of(shape: list[Any] | None) -> tuple[int, ...]:
    """Sizes that vary have a name, or none."""
    return tuple(size if isinstance(size, int) and size >= 0 else WILDCARD for size in shape or ())
