"""What patterns of a graph are made of."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.workers.models.general.graph.simplify import END
from slipstream.workers.models.general.graph.step_graph import Node, Target

aten = torch.ops.aten

DTYPES = (torch.float32, torch.bfloat16)  # of the kernels
CASTS = (aten.to.dtype, aten.type_as.default, aten._to_copy.default)
# Operators that compute each number by itself, from the numbers at its place.
ELEMENTWISE = (
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.pow.Tensor_Scalar,
    aten.square.default,
    aten.neg.default,
    aten.exp.default,
    aten.erf.default,
    aten.tanh.default,
    aten.sigmoid.default,
    aten.relu.default,
    aten.silu.default,
    aten.gelu.default,
    aten.clamp.default,
    aten.clamp_min.default,
)


def becomes(node: Node, target: Target, args: tuple[Any, ...]) -> None:
    node.target, node.args, node.kwargs = target, args, {}


def call_of(value: Any, target: Target) -> Node | None:
    return value if isinstance(value, Node) and value.target is target else None


def only(users: list[Node]) -> Node | None:
    return users[0] if len(users) == 1 else None


def is_slice(node: Any, of: Node, start: int, end: int) -> bool:
    """Whether it is `of`[.., start:end]."""
    if not isinstance(node, Node) or node.target is not aten.slice.Tensor or node.args[0] is not of:
        return False
    dim, first, last = (*node.args[1:4], *(0, 0, END + 1)[len(node.args) - 1 :])[:3]
    reaches = isinstance(last, int) and (last >= of.shape[-1] if end == END else last == end)
    return dim % len(of.shape) == len(of.shape) - 1 and (first or 0) == start and reaches
