"""Traces a model twice, with steps of two sizes, into one graph for steps of any size.

What differs between the two must be a size that grows with the step, or the model cannot be captured. The graph has the
operators that the model calls, not those that they are made of (`linear`, not its transposed product)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from slipstream.workers.models.general.execution.step_graph import Node, Size, StepGraph

Run = Callable[[Tensor, Tensor, Tensor], Tensor]

TOKENS = (11, 13)  # of the two steps. No product of one of them has the ratio of another's
ROWS = (3, 4)


# What a program of Python may have looked at, so that it calls something else for other tokens.
LOOKS = ("item", "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "allclose", "unique")


class NotCapturedError(Exception):
    """The model's step is no graph that holds for steps of any size. The text says why."""


def capture(run: Run) -> StepGraph:
    """`run`, a function, takes token ids [tokens], positions [tokens] and rows [n], all int64, and returns scores.
    Raises NotCapturedError."""
    first, second = (_traced(run, tokens, rows) for tokens, rows in zip(TOKENS, ROWS, strict=True))
    if len(first.graph.nodes) != len(second.graph.nodes):
        raise NotCapturedError("what it calls depends on the number of tokens")
    nodes: dict[fx.Node, Node] = {}
    inputs: list[Node] = []
    output: Node | None = None
    for one, other in zip(first.graph.nodes, second.graph.nodes, strict=True):
        if one.op != other.op or (one.op == "call_function" and one.target is not other.target):
            raise NotCapturedError("what it calls depends on the number of tokens")
        if one.op == "output":
            output = _merged(one.args[0], other.args[0], nodes)
            continue
        node = nodes[one] = _node(one, other, first, second, nodes)
        if one.op == "placeholder":
            inputs.append(node)
    if not isinstance(output, Node) or len(inputs) != 3:
        raise NotCapturedError("it returns something else than scores")
    return StepGraph(list(nodes.values()), (inputs[0], inputs[1], inputs[2]), output)


def _traced(run: Run, num_tokens: int, num_rows: int) -> fx.GraphModule:
    tokens = torch.arange(num_tokens)
    try:
        with torch.no_grad():
            return make_fx(run, pre_dispatch=True)(tokens, tokens.clone(), torch.arange(num_rows))
    except Exception as error:  # whatever a model does that cannot be traced
        lines = str(error).strip().splitlines()
        raise NotCapturedError(f"{type(error).__name__}: {lines[0] if lines else ''}") from error


def _node(one: fx.Node, other: fx.Node, first: Any, second: Any, nodes: dict[fx.Node, Node]) -> Node:
    meta: Any = one.meta.get("tensor_meta")
    shape, dtype = (tuple(meta.shape), meta.dtype) if hasattr(meta, "shape") else ((), None)
    if one.op == "placeholder":
        return Node(None, shape=shape, dtype=dtype)
    if one.op == "get_attr":
        values = [_attribute(root, node) for root, node in ((first, one), (second, other))]
        if values[0].shape != values[1].shape or not torch.equal(*values):
            raise NotCapturedError("a constant depends on the number of tokens")
        return Node(None, shape=tuple(values[0].shape), dtype=values[0].dtype, value=values[0].detach())
    if one.op != "call_function" or not callable(one.target):
        raise NotCapturedError(f"it calls {one.target}")
    if isinstance(one.target, torch._ops.OpOverload) and one.target._schema.name.removeprefix("aten::") in LOOKS:
        raise NotCapturedError(f"what it computes depends on numbers ({one.target})")
    return Node(
        one.target, _merged(one.args, other.args, nodes), _merged(one.kwargs, other.kwargs, nodes), shape, dtype
    )


def _attribute(root: Any, node: fx.Node) -> Tensor:
    found: Tensor = root
    for name in str(node.target).split("."):
        found = getattr(found, name)
    return found


def _merged(one: Any, other: Any, nodes: dict[fx.Node, Node]) -> Any:
    """An argument of both graphs as one, with sizes where they differ."""
    if isinstance(one, fx.Node):
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
