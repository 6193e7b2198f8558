"""Norms of rows."""

from __future__ import annotations

import torch

from slipstream.workers.models.general.execution.patterns import CASTS, DTYPES, becomes, call_of, only
from slipstream.workers.models.general.graph.kernel_calls import LayerNorm, Norm
from slipstream.workers.models.general.graph.step_graph import Node, StepGraph

aten = torch.ops.aten


class Norms:
    """x * rsqrt(mean(x^2) + eps), before or behind casts and with a weight or without."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._users = graph.users()

    def run(self) -> int:
        """How many were put in place."""
        found = sum(self._fuse(node) for node in self._graph.nodes if node.target is aten.rsqrt.default)
        return found + sum(_fuse_layer_norm(node) for node in self._graph.nodes)

    def _fuse(self, root: Node) -> bool:
        total = call_of(root.args[0], aten.add.Tensor)
        mean = total and call_of(total.args[0], aten.mean.dim)
        if total is None or mean is None or not isinstance(total.args[1], float | int):
            return False
        if [one % len(mean.shape) for one in mean.args[1]] != [len(mean.shape) - 1]:
            return False
        square = mean.args[0]
        wide = square.args[0]
        if square.target is aten.pow.Tensor_Scalar:
            is_square = square.args[1] == 2
        else:
            is_square = square.target is aten.mul.Tensor and square.args[1] is wide
        product = only(self._users[root])
        if not is_square or product is None or product.target is not aten.mul.Tensor or wide not in product.args:
            return False
        x = wide.args[0] if wide.target in CASTS and wide.dtype == torch.float32 else wide
        end, weight = self._end(product)
        if end.dtype != x.dtype or x.dtype not in DTYPES or len(x.shape) == 0:
            return False
        becomes(end, Norm(float(total.args[1])), (x,) if weight is None else (x, weight))
        return True

    def _end(self, node: Node) -> tuple[Node, Node | None]:
        """The last node of the norm that begins with `node`, and its weight."""
        weight = None
        while (user := only(self._users[node])) is not None:
            if user.target in CASTS and user.args[0] is node and user.dtype in DTYPES:
                node = user
                continue
            others = [one for one in user.args if one is not node]
            if user.target is not aten.mul.Tensor or weight is not None or len(others) != 1:
                break
            factor = others[0]
            if not isinstance(factor, Node) or factor.value is None or factor.shape != node.shape[-1:]:
                break
            weight, node = factor, user
        return node, weight


def _fuse_layer_norm(node: Node) -> bool:
    if node.target is not aten.layer_norm.default or node.kwargs:
        return False
    x, shape, weight, bias, eps = (*node.args, *(None, None, 1e-5)[len(node.args) - 2 :])[:5]
    parts = [one for one in (weight, bias) if one is not None]
    if len(shape) != 1 or x.dtype not in DTYPES or any(one.value is None for one in parts):
        return False
    becomes(node, LayerNorm(float(eps)), (x, weight, bias))
    return True
