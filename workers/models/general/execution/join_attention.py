"""Attention whose queries, keys and values lie side by side in one product's rows: one call instead of a dozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from slipstream.workers.models.general.graph.kernel_calls import Behind, Product, Rotation
from slipstream.workers.models.general.graph.step_graph import Node

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class JoinedHeads:
    """The rows of `product` [1, tokens, ..] are queries, keys and values. `rotation` is that of queries and keys, by
    `cosines` and `sines`; None: they are not rotated."""

    product: Node
    rotation: Rotation | None
    cosines: Node | None
    sines: Node | None

    @property
    def nodes(self) -> tuple[Node, ...]:
        tables = () if self.cosines is None or self.sines is None else (self.cosines, self.sines)
        return (self.product, *tables)


def joined_heads(query: Node, key: Node, value: Node) -> JoinedHeads | None:
    """What queries, keys and values, [1, heads, tokens, dim] each, are if they are of this kind."""
    of_query, of_keys, of_values = (_part(one) for one in (query, key, value))
    if of_query is None or of_keys is None or of_values is None:
        return None
    product, rotation, tables, start, width = of_query
    if product is not of_keys[0] or product is not of_values[0] or not isinstance(product.target, Product):
        return None
    if rotation != of_keys[1]:
        return None
    if tables != of_keys[2] or of_values[1] is not None or query.shape[3] != key.shape[3]:
        return None
    if (start, of_keys[3], of_values[3]) != (0, width, width + of_keys[4]):
        return None
    if product.shape[-1] != width + of_keys[4] + of_values[4] or len(product.shape) != 3:
        return None
    return JoinedHeads(product, rotation, *(tables or (None, None)))


def _part(node: Node) -> tuple[Node, Rotation | None, tuple[Node, Node] | None, int, int] | None:
    """Product, rotation, its tables, first column and number of columns of heads."""
    rotation: Rotation | None = None
    tables: tuple[Node, Node] | None = None
    done: Any = node
    if isinstance(node.target, Behind):
        node, done = node.args
        if done.args[0].target is not aten.slice.Tensor or done.args[0].args[0] is not node:
            return None
    if isinstance(done.target, Rotation):
        rotation, tables = done.target, (done.args[1], done.args[2])
        node = done.args[0] if done is node else node
    if node.target is not aten.transpose.int or tuple(node.args[1:]) != (1, 2):
        return None
    heads = node.args[0]
    if heads.target is not aten.view.default or len(heads.shape) != 4:
        return None
    columns = heads.args[0]
    if columns.target is not aten.narrow.default or columns.args[1] != -1:
        return None
    product, _, start, width = columns.args
    return product, rotation, tables, start, width
