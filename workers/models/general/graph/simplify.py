"""Takes out of a graph what changes nothing, what can be computed once, and what is computed twice."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

from slipstream.workers.models.general.graph.leaves import leaf_op
from slipstream.workers.models.general.graph.step_graph import Node, StepGraph
from slipstream.workers.models.general.graph.writes import CASTS, written_nodes

aten = torch.ops.aten
END = 1 << 62  # of a slice: all that is there
MAX_FOLDED = 1 << 16  # numbers

SAME = (aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.dropout.default, aten.contiguous.default)


def simplify(graph: StepGraph) -> None:
    _drop_identities(graph)
    _fold_constants(graph)
    if not any(_mutates(node) for node in graph.nodes):
        _merge_equals(graph)
    graph.drop_unused(has_effect)


def has_effect(node: Node) -> bool:
    """Whether it does more than to return something. Kernels of ours may write into what they are given."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target is leaf_op() or _mutates(node)
    return node.target is not None and node.target is not operator.getitem


def _mutates(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _drop_identities(graph: StepGraph) -> None:
    new: dict[Node, Node] = {}
    kept = []
    for node in graph.nodes:
        node.replace_inputs(new)
        if node.target is not None and _is_identity(node):
            new[node] = node.args[0]
        else:
            kept.append(node)
    graph.nodes = kept
    graph.output = new.get(graph.output, graph.output)


def _is_identity(node: Node) -> bool:
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or source.dtype != node.dtype or source.shape != node.shape:
        return False
    if node.target is aten.dropout.default:
        return not node.args[2] or not node.args[1]
    if node.target is aten.contiguous.default:
        return False  # it depends on the strides
    if node.target is aten.mul.Tensor:
        return isinstance(node.args[1], int | float) and node.args[1] == 1
    if node.target is aten.slice.Tensor:
        return (
            len(node.args) >= 4 and node.args[2] in (0, None) and isinstance(node.args[3], int) and node.args[3] > END
        )
    return node.target in CASTS or node.target in SAME


def _fold_constants(graph: StepGraph) -> None:
    written = written_nodes(graph)  # each step makes these anew
    for node in graph.nodes:
        inputs = node.inputs
        if node.target is None or not inputs or has_effect(node) or node in written:
            continue
        if all(one.value is not None for one in inputs) and _is_small(node):
            args, kwargs = _values((node.args, node.kwargs))
            found = node.target(*args, **kwargs)
            if isinstance(found, Tensor):
                node.target, node.args, node.kwargs, node.value = None, (), {}, found


def _is_small(node: Node) -> bool:
    """Not a matrix of the model: these stay where the checkpoint has them."""
    return math.prod(node.shape) <= MAX_FOLDED


def _values(value: Any) -> Any:
    if isinstance(value, Node):
        return value.value
    if isinstance(value, dict):
        return {name: _values(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_values(one) for one in value)
    return value


def _merge_equals(graph: StepGraph) -> None:
    seen: dict[Any, Node] = {}
    new: dict[Node, Node] = {}
    kept = []
    for node in graph.nodes:
        node.replace_inputs(new)
        if node.target is None or has_effect(node):
            key: Any = _identity(node.value) if node.value is not None else node
        else:
            key = (node.target, _hashable(node.args), _hashable(node.kwargs))
        if key in seen:
            new[node] = seen[key]
        else:
            seen[key] = node
            kept.append(node)
    graph.nodes = kept
    graph.output = new.get(graph.output, graph.output)


def _identity(constant: Tensor) -> tuple[object, ...]:
    return (constant.data_ptr(), tuple(constant.shape), constant.stride(), constant.dtype)


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _hashable(one)) for name, one in value.items())
    if isinstance(value, tuple | list):
        return tuple(_hashable(one) for one in value)
    return (type(value), value)
