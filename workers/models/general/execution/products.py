"""Linear layers: those of one input side by side, and gates and activations in the same call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from slipstream.kernels.cpu.native_linear import Activation, LinearPacker
from slipstream.kernels.elementwise.gated import Gate
from slipstream.workers.models.general.execution.activations import activation_of
from slipstream.workers.models.general.execution.patterns import DTYPES, becomes
from slipstream.workers.models.general.graph.kernel_calls import Product
from slipstream.workers.models.general.graph.simplify import has_effect
from slipstream.workers.models.general.graph.step_graph import Node, StepGraph

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Part:
    """Some outputs of a linear layer."""

    product: Node
    start: int
    width: int

    @classmethod
    def of(cls, node: Any) -> _Part | None:
        if is_product(node):
            return cls(node, 0, node.shape[-1])
        if isinstance(node, Node) and node.target is aten.narrow.default and is_product(node.args[0]):
            product, dim, start, width = node.args
            if dim in (-1, len(product.shape) - 1):
                return cls(product, start, width)
        return None

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.product.args[1].value
        return weight[self.start : self.start + self.width]

    @property
    def bias(self) -> Tensor | None:
        bias = bias_of(self.product)
        return None if bias is None else bias[self.start : self.start + self.width]


class Products:
    def __init__(self, graph: StepGraph, library: ctypes.CDLL) -> None:
        self._graph, self._library = graph, library
        self._users = graph.users()

    def run(self) -> tuple[int, int, int]:
        """How many products were put in place, how many of them with a gate, and with an activation."""
        gates = sum(self._fuse_gate(node) for node in list(self._graph.nodes) if node.target is aten.mul.Tensor)
        self._graph.drop_unused(has_effect)  # such as the products that the gates are made of
        self._users = self._graph.users()
        activations = sum(self._fuse_activation(node) for node in list(self._graph.nodes) if is_product(node))
        self._graph.drop_unused(has_effect)
        by_input: dict[tuple[Node, bool], list[Node]] = {}
        for node in self._graph.nodes:
            if is_product(node):
                by_input.setdefault((node.args[0], bias_of(node) is not None), []).append(node)
        for group in by_input.values():
            self._fuse_group(group)
        return len(by_input) + gates + activations, gates, activations

    def _fuse_gate(self, node: Node) -> bool:
        for opening, other in (node.args, node.args[::-1]):
            gate = _gate(opening)
            if gate is None or not isinstance(other, Node) or len(self._users[opening]) != 1:
                continue
            parts = [_Part.of(one) for one in (opening.args[0], other)]
            gated, up = parts
            if gated is None or up is None or gated.product.args[0] is not up.product.args[0]:
                continue
            if any(len(self._users[one]) != 1 for one in (opening.args[0], other)) or gated.width != up.width:
                continue
            if (gated.bias is None) != (up.bias is None) or not self._are_all_outputs(gated, up):
                continue
            self._add(node, gated.product.args[0], [gated, up], gate=gate)
            return True
        return False

    def _are_all_outputs(self, one: _Part, other: _Part) -> bool:
        """Whether nothing else is computed of their products."""
        if one.product is other.product:
            return len(self._users[one.product]) == 2
        return all(part.width == part.product.shape[-1] for part in (one, other))

    def _fuse_activation(self, product: Node) -> bool:
        found = activation_of(product, self._users)
        if found is None or found[0].dtype != product.dtype:
            return False
        end, activation = found
        self._add(end, product.args[0], [_Part(product, 0, product.shape[-1])], activation=activation)
        return True

    def _fuse_group(self, group: Sequence[Node]) -> None:
        first, x = group[0], group[0].args[0]
        parts = [_Part(one, 0, one.shape[-1]) for one in group]
        if len(group) == 1:
            self._add(first, x, parts)
            return
        whole = Node(None, (), {}, (*first.shape[:-1], sum(one.width for one in parts)), first.dtype)
        self._add(whole, x, parts)
        self._graph.insert_before(first, whole)
        start = 0
        for node in group:
            becomes(node, aten.narrow.default, (whole, -1, start, node.shape[-1]))
            start += node.shape[-1]

    def _add(
        self,
        node: Node,
        x: Node,
        parts: Sequence[_Part],
        *,
        gate: Gate | None = None,
        activation: Activation | None = None,
    ) -> None:
        dtype = cast(torch.dtype, x.dtype)
        biases = [bias for one in parts if (bias := one.bias) is not None]
        weights = [one.weight for one in parts]
        packer = LinearPacker(self._library, dtype)
        packer.add(weights, biases or None, gate=gate, activation=activation)
        packed = Node(None, shape=(packer.num_bytes,), dtype=torch.uint8, fill=packer.fill)
        self._graph.nodes.insert(0, packed)
        outputs = sum(one.width for one in parts)
        becomes(node, Product(dtype, outputs, weights[0].shape[1], bool(biases), gate, activation), (x, packed))


def is_product(node: Any) -> bool:
    if not isinstance(node, Node) or node.target is not aten.linear.default or node.args[0].dtype not in DTYPES:
        return False
    weight, bias = node.args[1].value, bias_of(node)
    has_values = weight is not None and (len(node.args) < 3 or node.args[2] is None or bias is not None)
    return has_values and weight.dtype == node.args[0].dtype and weight.dim() == 2 and weight.stride(1) == 1


def bias_of(node: Node) -> Tensor | None:
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
