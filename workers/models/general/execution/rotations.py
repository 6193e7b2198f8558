"""Rotary embedding of heads."""

from __future__ import annotations

from typing import cast

import torch

from slipstream.workers.models.general.execution.patterns import DTYPES, becomes, call_of, is_slice
from slipstream.workers.models.general.graph.kernel_calls import Behind, Norm, Product, Rotation
from slipstream.workers.models.general.graph.simplify import END
from slipstream.workers.models.general.graph.step_graph import Node, StepGraph

aten = torch.ops.aten
VIEWS = (
    aten.view.default,
    aten.reshape.default,
    aten.transpose.int,
    aten.narrow.default,
    aten.slice.Tensor,
    aten.unsqueeze.default,
)


class Rotations:
    """x * cos + rotate_half(x) * sin, in place where nothing else reads x."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._users = graph.users()

    def run(self) -> int:
        found = sum(self._fuse(node) for node in list(self._graph.nodes) if node.target is aten.add.Tensor)
        self._users = self._graph.users()
        for node in self._graph.nodes:
            if node.target is aten.cat.default:
                self._join(node)
        return found

    def _fuse(self, node: Node) -> bool:
        straight, turned = (call_of(one, aten.mul.Tensor) for one in node.args[:2])
        if straight is None or turned is None or len(node.shape) != 4:
            return False
        x, cosines = straight.args
        half = x.shape[-1] // 2 if isinstance(x, Node) and x.shape else 0
        cat, sines = turned.args
        if not isinstance(cat, Node) or cat.target is not aten.cat.default or len(cat.args[0]) != 2 or half == 0:
            return False
        negated, low = cat.args[0]
        high = call_of(negated, aten.neg.default)
        if high is None or not is_slice(high.args[0], x, half, END) or not is_slice(low, x, 0, half):
            return False
        tables = [one for one in (cosines, sines) if isinstance(one, Node) and one.dtype == x.dtype in DTYPES]
        if len(tables) != 2 or any(one.shape != (1, 1, node.shape[2], 2 * half) for one in tables):
            return False
        own = {straight, high.args[0], low}
        if not set(self._users[x]) <= own or not self._is_fresh(x):
            copy = Node(aten.clone.default, (x,), {}, x.shape, x.dtype)
            self._graph.insert_before(node, copy)
            x = copy
        becomes(node, Rotation(2 * half, cast(torch.dtype, x.dtype)), (x, cosines, sines))
        return True

    def _is_fresh(self, x: Node) -> bool:
        """Whether it is a view of what one of our kernels has just made, and nothing else reads the same numbers."""
        while x.target in VIEWS:
            source = x.args[0]
            is_part = x.target is aten.slice.Tensor or x.target is aten.narrow.default
            if not is_part and len(self._users[source]) > 1:
                return False
            x = source
        return isinstance(x.target, Norm | Product)

    def _join(self, node: Node) -> None:
        """Where a part of a head was rotated in place, and is put together with the rest, that is the head."""
        parts = node.args[0]
        if len(parts) != 2 or not isinstance(parts[0].target, Rotation):
            return
        rotated, rest = parts
        part = rotated.args[0]
        width = part.shape[-1]
        if part.target is not aten.slice.Tensor or not is_slice(rest, part.args[0], width, END):
            return
        if is_slice(part, part.args[0], 0, width) and self._users[rotated] == [node]:
            becomes(node, Behind(), (part.args[0], rotated))
