"""Puts native kernels in the place of what a graph computes with torch: products, norms, rotary embedding, gates.

Parts are recognised by what they compute, so a norm is one in whatever class a model has it. What is not recognised
stays as it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from slipstream.kernels.cpu.native_linear import LinearPacker
from slipstream.kernels.elementwise.gated import Gate
from slipstream.workers.models.general.graph.kernel_calls import Behind, Norm, Product, Rotation
from slipstream.workers.models.general.graph.simplify import END, has_effect
from slipstream.workers.models.general.graph.step_graph import Node, StepGraph, Target

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16)
CASTS = (aten.to.dtype, aten.type_as.default, aten._to_copy.default)
VIEWS = (
    aten.view.default,
    aten.reshape.default,
    aten.transpose.int,
    aten.narrow.default,
    aten.slice.Tensor,
    aten.unsqueeze.default,
)


@dataclass(slots=True)
class Fused:
    """How many parts were put in place of others."""

    products: int = 0
    gates: int = 0
    norms: int = 0
    rotations: int = 0
    experts: int = 0  # layers of them


def fuse(graph: StepGraph, library: ctypes.CDLL) -> Fused:
    fused = Fused()
    fused.norms = _Norms(graph).run()
    fused.products, fused.gates = _Products(graph, library).run()
    fused.rotations = _Rotations(graph).run()
    graph.drop_unused(has_effect)
    return fused


class _Norms:
    """x * rsqrt(mean(x^2) + eps), before or behind casts and with a weight or without."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._users = graph.users()

    def run(self) -> int:
        return sum(self._fuse(node) for node in self._graph.nodes if node.target is aten.rsqrt.default)

    def _fuse(self, root: Node) -> bool:
        total = _call(root.args[0], aten.add.Tensor)
        mean = total and _call(total.args[0], aten.mean.dim)
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
        product = _only(self._users[root])
        if not is_square or product is None or product.target is not aten.mul.Tensor or wide not in product.args:
            return False
        x = wide.args[0] if wide.target in CASTS and wide.dtype == torch.float32 else wide
        end, weight = self._end(product)
        if end.dtype != x.dtype or x.dtype not in DTYPES or len(x.shape) == 0:
            return False
        _becomes(end, Norm(float(total.args[1])), (x,) if weight is None else (x, weight))
        return True

    def _end(self, node: Node) -> tuple[Node, Node | None]:
        """The last node of the norm that begins with `node`, and its weight."""
        weight = None
        while (user := _only(self._users[node])) is not None:
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


class _Products:
    """Linear layers, those of one input side by side; and gates behind two of these."""

    def __init__(self, graph: StepGraph, library: ctypes.CDLL) -> None:
        self._graph, self._library = graph, library
        self._users: dict[Node, list[Node]] = {}

    def run(self) -> tuple[int, int]:
        self._users = self._graph.users()
        gates = sum(self._fuse_gate(node) for node in list(self._graph.nodes) if node.target is aten.mul.Tensor)
        self._graph.drop_unused(has_effect)
        by_input: dict[tuple[Node, bool], list[Node]] = {}
        for node in self._graph.nodes:
            if _is_product(node):
                by_input.setdefault((node.args[0], _bias(node) is not None), []).append(node)
        for group in by_input.values():
            self._fuse_group(group)
        return len(by_input) + gates, gates

    def _fuse_gate(self, node: Node) -> bool:
        users = self._users
        for opening, up in (node.args, node.args[::-1]):
            gate = _gate(opening)
            if gate is None or not isinstance(up, Node) or len(users[opening]) != 1:
                continue
            product = opening.args[0]
            if not (_is_product(product) and _is_product(up)) or product.args[0] is not up.args[0]:
                continue
            biases = [_bias(one) for one in (product, up)]
            if len(users[product]) != 1 or len(users[up]) != 1 or (biases[0] is None) != (biases[1] is None):
                continue
            if product.shape != up.shape:
                continue
            self._add(node, product.args[0], [product, up], gate)
            return True
        return False

    def _fuse_group(self, group: Sequence[Node]) -> None:
        first, x = group[0], group[0].args[0]
        if len(group) == 1:
            self._add(first, x, group, None)
            return
        whole = Node(None, (), {}, (*first.shape[:-1], sum(one.shape[-1] for one in group)), first.dtype)
        self._add(whole, x, group, None)
        self._graph.insert_before(first, whole)
        start = 0
        for node in group:
            _becomes(node, aten.narrow.default, (whole, -1, start, node.shape[-1]))
            start += node.shape[-1]

    def _add(self, node: Node, x: Node, products: Sequence[Node], gate: Gate | None) -> None:
        dtype = cast(torch.dtype, x.dtype)
        biases = [bias for one in products if (bias := _bias(one)) is not None]
        weights = [_weight(one) for one in products]
        packer = LinearPacker(self._library, dtype)
        packer.add(weights, biases or None, gate=gate)
        packed = Node(None, shape=(packer.num_bytes,), dtype=torch.uint8, fill=packer.fill)
        self._graph.nodes.insert(0, packed)
        outputs = sum(len(weight) for weight in weights)
        _becomes(node, Product(dtype, outputs, weights[0].shape[1], bool(biases), gate), (x, packed))


class _Rotations:
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
        straight, turned = (_call(one, aten.mul.Tensor) for one in node.args[:2])
        if straight is None or turned is None or len(node.shape) != 4:
            return False
        x, cosines = straight.args
        half = x.shape[-1] // 2 if isinstance(x, Node) and x.shape else 0
        cat, sines = turned.args
        if not isinstance(cat, Node) or cat.target is not aten.cat.default or len(cat.args[0]) != 2 or half == 0:
            return False
        negated, low = cat.args[0]
        high = _call(negated, aten.neg.default)
        if high is None or not _is_slice(high.args[0], x, half, END) or not _is_slice(low, x, 0, half):
            return False
        tables = [one for one in (cosines, sines) if isinstance(one, Node) and one.dtype == x.dtype in DTYPES]
        if len(tables) != 2 or any(one.shape != (1, 1, node.shape[2], 2 * half) for one in tables):
            return False
        own = {straight, high.args[0], low}
        if not set(self._users[x]) <= own or not self._is_fresh(x):
            copy = Node(aten.clone.default, (x,), {}, x.shape, x.dtype)
            self._graph.insert_before(node, copy)
            x = copy
        _becomes(node, Rotation(2 * half, cast(torch.dtype, x.dtype)), (x, cosines, sines))
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
        if part.target is not aten.slice.Tensor or not _is_slice(rest, part.args[0], width, END):
            return
        if _is_slice(part, part.args[0], 0, width) and self._users[rotated] == [node]:
            _becomes(node, Behind(), (part.args[0], rotated))


def _becomes(node: Node, target: Target, args: tuple[Any, ...]) -> None:
    node.target, node.args, node.kwargs = target, args, {}


def _call(value: Any, target: Target) -> Node | None:
    return value if isinstance(value, Node) and value.target is target else None


def _only(users: list[Node]) -> Node | None:
    return users[0] if len(users) == 1 else None


def _is_slice(node: Any, of: Node, start: int, end: int) -> bool:
    """Whether it is `of`[.., start:end]."""
    if not isinstance(node, Node) or node.target is not aten.slice.Tensor or node.args[0] is not of:
        return False
    dim, first, last = (*node.args[1:4], *(0, 0, END + 1)[len(node.args) - 1 :])[:3]
    reaches = isinstance(last, int) and (last >= of.shape[-1] if end == END else last == end)
    return dim % len(of.shape) == len(of.shape) - 1 and (first or 0) == start and reaches


def _is_product(node: Any) -> bool:
    if not isinstance(node, Node) or node.target is not aten.linear.default or node.args[0].dtype not in DTYPES:
        return False
    weight, bias = node.args[1].value, _bias(node)
    has_values = weight is not None and (len(node.args) < 3 or node.args[2] is None or bias is not None)
    return has_values and weight.dtype == node.args[0].dtype and weight.stride(1) == 1


def _weight(node: Node) -> Tensor:
    weight: Tensor = node.args[1].value
    return weight


def _bias(node: Node) -> Tensor | None:
    bias: Node | None = node.args[2] if len(node.args) > 2 else None
    return None if bias is None else bias.value


def _gate(node: Any) -> Gate | None:
    if not isinstance(node, Node):
        return None
    if node.target is aten.silu.default:
        return "silu"
    if node.target is aten.gelu.default and node.kwargs.get("approximate") == "tanh":
        return "gelu_tanh"
    return None
