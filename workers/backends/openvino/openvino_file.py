"""The inputs and outputs of a model, as OpenVINO has read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import openvino

from slipstream.workers.backends.file_checks import WILDCARD, FileTensor

# OpenVINO's name of a type -> that of a configuration.
DATATYPES = {
    "boolean": "TYPE_BOOL",
    "u8": "TYPE_UINT8",
    "u16": "TYPE_UINT16",
    "u32": "TYPE_UINT32",
    "u64": "TYPE_UINT64",
    "i8": "TYPE_INT8",
    "i16": "TYPE_INT16",
    "i32": "TYPE_INT32",
    "i64": "TYPE_INT64",
    "f16": "TYPE_FP16",
    "f32": "TYPE_FP32",
    "f64": "TYPE_FP64",
    "bf16": "TYPE_BF16",
}


@dataclass(frozen=True, slots=True)
class OpenvinoFile:
    """`inputs` and `outputs` have the first name of each; `names` all of them, with their positions."""

    inputs: dict[str, FileTensor]
    outputs: dict[str, FileTensor]
    input_places: dict[str, int]
    output_places: dict[str, int]

    @classmethod
    def of(cls, graph: openvino.Model) -> OpenvinoFile:
        inputs = [(input_names(port), port) for port in graph.inputs]
        outputs = [(output_names(port), port) for port in graph.outputs]
        return cls(tensors(inputs), tensors(outputs), places(inputs), places(outputs))


def tensors(ports: Iterable[tuple[list[str], Any]]) -> dict[str, FileTensor]:
    found = {}
    for names, port in ports:
        kind, shape = port.get_element_type().get_type_name(), shape_of(port.get_partial_shape())
        for name in names:
            found[name] = FileTensor(name, DATATYPES.get(kind, kind), shape)
    return found


def places(ports: Iterable[tuple[list[str], Any]]) -> dict[str, int]:
    return {name: place for place, (names, _) in enumerate(ports) for name in names}


def input_names(port: Any) -> list[str]:
    """Files of old versions name the nodes, and not the tensors."""
    return sorted(port.get_names()) or [port.get_node().get_friendly_name()]


def output_names(port: Any) -> list[str]:
    node = port.get_node()
    return sorted(port.get_names()) or [node.input_value(0).get_node().get_friendly_name()]


def shape_of(shape: openvino.PartialShape) -> tuple[int, ...] | None:
    if shape.rank.is_dynamic:
        return None
    return tuple(size.get_length() if size.is_static else WILDCARD for size in shape)
