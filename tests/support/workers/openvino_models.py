"""Small models in OpenVINO's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino
from openvino import opset13

# Types are OpenVINO's: `f32`.


def add_sub(kind: str = "f32", shape: tuple[int, ...] = (-1, 4)) -> openvino.Model:
    """SUM = A + B, DIFF = A - B."""
    a, b = parameter("A", kind, shape), parameter("B", kind, shape)
    return openvino.Model([named(opset13.add(a, b), "SUM"), named(opset13.subtract(a, b), "DIFF")], [a, b], "add_sub")


def copy_of(kind: str, shape: tuple[int, ...] = (-1, 2)) -> openvino.Model:
    """OUT is IN, once more."""
    given = parameter("IN", kind, shape)
    return openvino.Model([named(opset13.concat([given], axis=0), "OUT")], [given], "copy")


def parameter(name: str, kind: str, shape: tuple[int, ...]) -> Any:
    return named(opset13.parameter(list(shape), getattr(openvino.Type, kind)), name)


def named(node: Any, name: str) -> Any:
    node.output(0).tensor.set_names({name})
    return node


def write_openvino(path: Path, model: openvino.Model) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    openvino.save_model(model, str(path), compress_to_fp16=False)
    return path
