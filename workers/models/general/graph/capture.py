"""Traces a model twice, with steps of two sizes, into one graph for steps of any size.

What differs between the two must be a size that grows with the step, or the model cannot be captured. The graph has the
operators that the model calls, not those that they are made of (`linear`, not its transposed product)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slipstream.workers.models.general.graph.recorder import NotCapturedError, recorded
from slipstream.workers.models.general.graph.step_graph import Node, Size, StepGraph

Run = Callable[[Tensor, Tensor, Tensor], Tensor]

TOKENS = (11, 13)  # of the two steps. No product of one of them has the ratio of another's
ROWS = (3, 4)


def capture(run: Run) -> StepGraph:
    """`run`, a function, takes token ids [tokens], positions [tokens] and rows [n], all int64, and returns scores.
    Raises NotCapturedError."""
    first, second = (
        recorded(run, (torch.arange(tokens), torch.arange(tokens), torch.arange(rows)))
        for tokens, rows in zip(TOKENS, ROWS, strict=True)
    )
    if len(first.nodes) != len(second.nodes):
        raise NotCapturedError("what it calls depends on the number of tokens")
    nodes: dict[Node, Node] = {}
    for one, other in zip(first.nodes, second.nodes, strict=True):
        nodes[one] = nodes[other] = _node(one, other, nodes)
    if nodes[first.output] is not nodes[second.output]:
        raise NotCapturedError("what it returns depends on the number of tokens")
    tokens, positions, rows = (nodes[one] for one in first.inputs)
    return StepGraph([nodes[one] for one in first.nodes], (tokens, positions, rows), nodes[first.output])


def _node(one: Node, other: Node, nodes: dict[Node, Node]) -> Node:
    if one.target is not other.target or (one.value is None) != (other.value is None):
        raise NotCapturedError("what it calls depends on the number of tokens")
    if one.value is not None and other.value is not None and not _are_equal(one.value, other.value):
        raise NotCapturedError("a constant depends on the number of tokens")
    args, kwargs = _merged(one.args, other.args, nodes), _merged(one.kwargs, other.kwargs, nodes)
    return Node(one.target, args, kwargs, one.shape, one.dtype, one.value)


def _are_equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    is_same = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
    return is_same or torch.equal(one, other)


def _merged(one: Any, other: Any, nodes: dict[Node, Node]) -> Any:
    """An argument of both graphs as one, with sizes where they differ."""
    if isinstance(one, Node) and isinstance(other, Node) and nodes[one] is nodes[other]:
        return nodes[one]
    if isinstance(one, tuple | list) and len(one) == len(other):
        merged = [_merged(a, b, nodes) for a, b in zip(one, other, strict=True)]
        return tuple(merged) if isinstance(one, tuple) else merged
    if isinstance(one, dict):
        return {name: _merged(value, other[name], nodes) for name, value in one.items()}
    if one == other:
        return one
    if isinstance(one, int):
        for unit, name in ((TOKENS, "of_tokens"), (ROWS, "of_rows")):
            times = one // unit[0]
            if (one, other) == (times * unit[0], times * unit[1]):
                return Size(**{name: times})
    raise NotCapturedError(f"{one} and {other} in steps of {TOKENS[0]} and {TOKENS[1]} tokens")
