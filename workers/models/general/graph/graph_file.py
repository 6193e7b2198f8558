"""A graph as text, and its constants as one block of bytes, which workers of a host share."""

from __future__ import annotations

import dataclasses
import json
import keyword
import math
import operator
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.kernels.moe.gate import ClampedSwiglu
from slipstream.workers.models.general.graph.kernel_calls import KERNEL_CALLS
from slipstream.workers.models.general.graph.step_graph import Node, Size, StepGraph

Bytes = NDArray[np.uint8]

ALIGNMENT = 64
_CLASSES: dict[str, type[Any]] = {one.__name__: one for one in (*KERNEL_CALLS, ClampedSwiglu, Size)}
# Values that torch writes as `torch.NAME`.
_NAMED = (torch.dtype, torch.memory_format, torch.layout)


class GraphFileError(ValueError):
    """The graph cannot be written, or the text is none."""


def constants_of(graph: StepGraph) -> list[Node]:
    return [node for node in graph.nodes if node.is_constant]


def num_bytes(graph: StepGraph) -> int:
    """Of its constants."""
    return sum(_room(node) for node in constants_of(graph))


def fill_constants(graph: StepGraph, contents: Bytes) -> None:
    """Writes the constants to `contents` [num_bytes], aligned to 64 bytes."""
    begin = 0
    for node in constants_of(graph):
        part = contents[begin : begin + _size(node)]
        if node.fill is not None:
            node.fill(part)
        else:
            assert node.value is not None
            part[:] = node.value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        begin += _room(node)


def take_constants(graph: StepGraph, contents: Bytes) -> None:
    """Makes the graph's constants views of what `fill_constants` has written. They must not be written to."""
    begin = 0
    for node in constants_of(graph):
        assert node.dtype is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the memory is read-only
            raw = torch.from_numpy(contents[begin : begin + _size(node)])
        node.value, node.fill = raw.view(node.dtype).reshape(node.shape), None
        begin += _room(node)


def to_text(graph: StepGraph) -> str:
    """Raises GraphFileError if something in it has no text."""
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    nodes = [
        {
            "target": "constant" if node.is_constant else _target_text(node),
            "args": _encoded(node.args, numbers),
            "kwargs": _encoded(node.kwargs, numbers),
            "shape": list(node.shape),
            "dtype": None if node.dtype is None else str(node.dtype),
        }
        for node in graph.nodes
    ]
    return json.dumps(
        {"nodes": nodes, "inputs": [numbers[one] for one in graph.inputs], "output": numbers[graph.output]}
    )


def of_text(text: str | bytes) -> StepGraph:
    """The graph, whose constants have no values yet. Raises GraphFileError."""
    try:
        stored = json.loads(text)
        nodes: list[Node] = []
        for one in stored["nodes"]:
            node = Node(
                None,
                _decoded(one["args"], nodes),
                _keywords(_decoded(one["kwargs"], nodes)),
                tuple(_count(size) for size in one["shape"]),
                None if one["dtype"] is None else _named(one["dtype"]),
            )
            if one["target"] == "constant":
                node.fill = _not_filled
            else:
                node.target = _target_of(one["target"])
            nodes.append(node)
        first, second, third = (nodes[number] for number in stored["inputs"])
        return StepGraph(nodes, (first, second, third), nodes[stored["output"]])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise GraphFileError(f"the text is no graph of this version: {error}") from error


def _keywords(named: dict[str, Any]) -> dict[str, Any]:
    """`program` writes these names into the source of a function."""
    for name in named:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise GraphFileError(f"{name!r} is no name of an argument")
    return named


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise GraphFileError(f"{value!r} is no size")
    return value


def _not_filled(contents: Bytes) -> None:
    raise RuntimeError(f"a constant of {len(contents)} bytes is in no file")


def _size(node: Node) -> int:
    assert node.dtype is not None
    return math.prod(node.shape) * node.dtype.itemsize


def _room(node: Node) -> int:
    return -(-_size(node) // ALIGNMENT) * ALIGNMENT


def _target_text(node: Node) -> Any:
    target = node.target
    if target is None:
        return None
    if isinstance(target, torch._ops.OpOverload):
        return str(target)  # namespace.name.overload
    if isinstance(target, KERNEL_CALLS):
        return _encoded(target, {})
    if target is operator.getitem:
        return "getitem"
    raise GraphFileError(f"{target} has no text")


def _target_of(text: Any) -> Any:
    if text is None:
        return None
    if isinstance(text, dict):
        call = _decoded(text, [])
        if not isinstance(call, KERNEL_CALLS):
            raise GraphFileError(f"{call!r} is no call of a kernel")
        return call
    if text == "getitem":
        return operator.getitem
    found: Any = torch.ops
    for name in text.split("."):
        found = getattr(found, name)
    if not isinstance(found, torch._ops.OpOverload):
        raise GraphFileError(f"{text} is no operator")
    return found


def _encoded(value: Any, numbers: dict[Node, int]) -> Any:
    """`value` as JSON: what JSON has no form for is an object with one key."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Node):
        return {"node": numbers[value]}
    if isinstance(value, list):
        return [_encoded(one, numbers) for one in value]
    if isinstance(value, tuple):
        return {"tuple": [_encoded(one, numbers) for one in value]}
    if isinstance(value, dict):
        return {"dict": {name: _encoded(one, numbers) for name, one in value.items()}}
    if isinstance(value, _NAMED):
        return {"torch": str(value)}
    if isinstance(value, torch.device) and value.type == "cpu":
        return {"device": "cpu"}
    if type(value).__name__ in _CLASSES:
        fields = [getattr(value, one.name) for one in dataclasses.fields(value)]
        return {"class": type(value).__name__, "fields": [_encoded(one, numbers) for one in fields]}
    raise GraphFileError(f"{value!r} has no text")


def _decoded(value: Any, nodes: list[Node]) -> Any:
    if isinstance(value, list):
        return [_decoded(one, nodes) for one in value]
    if not isinstance(value, dict):
        return value
    if "class" in value:
        fields = [_decoded(one, nodes) for one in value["fields"]]
        if value["class"] == Size.__name__:
            fields = [_count(one) for one in fields]  # `program` writes them into the source of a function
        return _CLASSES[value["class"]](*fields)
    ((kind, stored),) = value.items()
    if kind == "node":
        return nodes[stored]
    if kind == "tuple":
        return tuple(_decoded(one, nodes) for one in stored)
    if kind == "dict":
        return {name: _decoded(one, nodes) for name, one in stored.items()}
    if kind == "torch":
        return _named(stored)
    if kind == "device":
        return torch.device(stored)
    raise GraphFileError(f"{kind!r} is no kind of value")


def _named(text: str) -> Any:
    found = getattr(torch, text.removeprefix("torch."))
    if not isinstance(found, _NAMED):
        raise GraphFileError(f"{text} is no dtype, layout or memory format")
    return found
