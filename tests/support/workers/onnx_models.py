"""Small ONNX files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper, save

TYPES: dict[str, int] = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}
Described = tuple[str, str, Sequence[int | str | None]]  # name, datatype, shape


def write_onnx(
    path: Path,
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str]]],
    inputs: Sequence[Described],
    outputs: Sequence[Described],
    initializers: Sequence[Any] = (),
) -> Path:
    """`nodes` are operator, inputs and outputs."""
    graph = helper.make_graph(
        [helper.make_node(*node) for node in nodes],
        "graph",
        [helper.make_tensor_value_info(name, TYPES[datatype], shape) for name, datatype, shape in inputs],
        [helper.make_tensor_value_info(name, TYPES[datatype], shape) for name, datatype, shape in outputs],
        initializer=list(initializers),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def write_add_sub(path: Path, datatype: str = "FP32", shape: Sequence[int | str | None] = ("n", 4)) -> Path:
    """SUM = A + B, DIFF = A - B."""
    nodes = [("Add", ["A", "B"], ["SUM"]), ("Sub", ["A", "B"], ["DIFF"])]
    inputs = [(name, datatype, shape) for name in "AB"]
    return write_onnx(path, nodes, inputs, [(name, datatype, shape) for name in ("SUM", "DIFF")])


def write_identity(path: Path, datatype: str, shape: Sequence[int | str | None] = ("n", 2)) -> Path:
    """OUT = IN."""
    nodes = [("Identity", ["IN"], ["OUT"])]
    return write_onnx(path, nodes, [("IN", datatype, shape)], [("OUT", datatype, shape)])
