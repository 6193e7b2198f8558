"""Gives products and their parts one form, of the several that models write them in."""

from __future__ import annotations

import operator
from itertools import accumulate
from typing import Any

import torch

from slipstream.workers.models.general.execution.patterns import becomes, only
from slipstream.workers.models.general.graph.simplify import has_effect
from slipstream.workers.models.general.graph.step_graph import Node, StepGraph

aten = torch.ops.aten
SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)
VIEWS = (aten.view.default, aten.reshape.default)


def make_uniform(graph: StepGraph) -> None:
    """`x.view(-1, n)` times a transposed weight (GPT-2) is `linear`, and splits of the last dimension are `narrow`."""
    users = graph.users()
    for node in list(graph.nodes):
        if node.target is aten.addmm.default and not node.kwargs:
            _make_linear(graph, node, users)
    for node in graph.nodes:
        if node.target is operator.getitem and node.args[0].target in SPLITS:
            _make_narrow(node)
        elif node.target is aten.slice.Tensor and node.args[0].target is aten.linear.default:
            _make_narrow_of_slice(node)
    graph.drop_unused(has_effect)


def _make_linear(graph: StepGraph, node: Node, users: dict[Node, list[Node]]) -> None:
    bias, rows, weight = node.args
    last = only(users[node])
    if weight.value is None or bias.value is None or len(bias.shape) != 1 or last is None or last.target not in VIEWS:
        return
    if rows.target not in VIEWS or rows.shape[-1] != rows.args[0].shape[-1]:
        return
    x = rows.args[0]
    if last.shape != (*x.shape[:-1], node.shape[-1]):
        return
    transposed = weight.value.t().contiguous()
    own = Node(None, shape=tuple(transposed.shape), dtype=transposed.dtype, value=transposed)
    graph.nodes.insert(0, own)
    becomes(last, aten.linear.default, (x, own, bias))


def _make_narrow(node: Node) -> None:
    split, at = node.args
    source, how, *dim = split.args
    size = source.shape[-1]
    dims: Any = dim[0] if dim else split.kwargs.get("dim", 0)
    if dims % len(source.shape) != len(source.shape) - 1:
        return
    if split.target is aten.split_with_sizes.default:
        sizes = list(how)
    else:
        step = how if split.target is aten.split.Tensor else -(-size // how)
        if not isinstance(step, int):
            return
        sizes = [min(step, size - start) for start in range(0, size, step)]
    if not all(isinstance(one, int) for one in sizes) or node.shape[-1] != sizes[at]:
        return
    starts = [0, *accumulate(sizes)]
    becomes(node, aten.narrow.default, (source, -1, starts[at], sizes[at]))


def _make_narrow_of_slice(node: Node) -> None:
    source, dim, start, *_ = (*node.args, 0, None)[:4]
    rest = node.args[4:]
    if dim % len(source.shape) != len(source.shape) - 1 or not isinstance(start, int | None) or rest not in ((), (1,)):
        return
    first = (start or 0) if (start or 0) >= 0 else source.shape[-1] + start
    becomes(node, aten.narrow.default, (source, -1, first, node.shape[-1]))
