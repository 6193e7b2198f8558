"""What the calls of a graph write to. It must not be a constant.

Constants are views of files that all workers of a host map: writing there would end the process. A model that changes a
tensor of its own from step to step is no graph in any case.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from slipstream.workers.models.general.graph.kernel_calls import Behind, Rotation
from slipstream.workers.models.general.graph.recorder import NotCapturedError
from slipstream.workers.models.general.graph.step_graph import Node, StepGraph

aten = torch.ops.aten

CASTS = (aten.to.dtype, aten._to_copy.default, aten.type_as.default, aten.to.device, aten.to.dtype_layout)


def refuse_written_constants(graph: StepGraph) -> None:
    """Raises NotCapturedError if a call writes to a constant or to a view of one."""
    for node in written_nodes(graph):
        if node.is_constant:
            raise NotCapturedError(f"it writes to a tensor of {list(node.shape)} that it keeps")


def written_nodes(graph: StepGraph) -> set[Node]:
    """Those that calls write to, directly or through views of them."""
    written: set[Node] = set()
    for node in reversed(graph.nodes):
        written.update(_written(node))
        if node in written:
            written.update(_aliased(node))
    return written


def _written(node: Node) -> Iterator[Node]:
    if isinstance(node.target, Rotation):
        yield from node.inputs[:1]
    for argument, value in _arguments(node):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _nodes(value)


def _aliased(node: Node) -> Iterator[Node]:
    """What the node's result may be a view of."""
    if node.target is operator.getitem or isinstance(node.target, Rotation | Behind):
        yield from node.inputs[:1]
    if node.target in CASTS and isinstance(node.args[0], Node) and node.args[0].dtype != node.dtype:
        return  # a copy
    for argument, value in _arguments(node):
        if argument.alias_info is not None:
            yield from _nodes(value)


def _arguments(node: Node) -> Iterator[tuple[Any, Any]]:
    """The arguments of an operator by its schema, and their values."""
    if isinstance(node.target, torch._ops.OpOverload):
        for at, argument in enumerate(node.target._schema.arguments):
            if at < len(node.args):
                yield argument, node.args[at]
            elif argument.name in node.kwargs:
                yield argument, node.kwargs[argument.name]


def _nodes(value: Any) -> Iterator[Node]:
    for one in value if isinstance(value, list | tuple) else (value,):
        if isinstance(one, Node):
            yield one
