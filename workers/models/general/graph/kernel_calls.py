"""The calls of native kernels in a graph, as data, so that a graph can be written to a file.

They are the targets of nodes. `bound` makes of a node what is called in a step: a function, and those of the node's
arguments that it still takes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from slipstream.kernels.cpu.grouped_experts import PackedExperts, PackedStack, grouped_experts
from slipstream.kernels.cpu.native_linear import Activation, NativeLinear
from slipstream.kernels.cpu.native_rows import NativeLayerNorm, NativeNorm, NativeRotation
from slipstream.kernels.elementwise.gated import Gate
from slipstream.kernels.moe.gate import ExpertGate
from slipstream.workers.models.general.graph.step_graph import Node, Target

Bound = tuple[Target, tuple[Any, ...]]


class AttentionOfStep(Protocol):
    """`general.attention.flat_attention`, as far as graphs call it."""

    def compute_joined(
        self,
        number: int,
        rotation: NativeRotation | None,
        qkv: Tensor,
        cosines: Tensor | None = None,
        sines: Tensor | None = None,
        *,
        sinks: Tensor | None = None,
    ) -> Tensor: ...

    def compute(
        self, number: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Kernels:
    """What calls are bound to."""

    library: ctypes.CDLL
    attention: AttentionOfStep


@dataclass(frozen=True, slots=True)
class Product:
    """`x @ weight.T + bias`, with a gate, an activation or neither. Of x and the bytes of a `LinearPacker`."""

    dtype: torch.dtype
    outputs: int  # of the weights, with those of the gate
    inputs: int
    has_bias: bool
    gate: Gate | None
    activation: Activation | None = None

    def bound(self, node: Node, kernels: Kernels) -> Bound:
        x, contents = node.args
        linear = NativeLinear.of_layer(
            kernels.library,
            contents.value.numpy(),
            self.dtype,
            outputs=self.outputs,
            inputs=self.inputs,
            has_bias=self.has_bias,
            gate=self.gate,
            activation=self.activation,
        )
        return linear, (x,)


@dataclass(frozen=True, slots=True)
class Norm:
    """`NativeNorm` of x and its weight, or of x alone."""

    eps: float

    def bound(self, node: Node, kernels: Kernels) -> Bound:
        x, *weight = node.args
        assert x.dtype is not None
        value = weight[0].value if weight else None
        return NativeNorm(kernels.library, x.shape[-1], value, self.eps, x.dtype), (x,)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """`NativeLayerNorm` of x, its weight and its bias, each of which may be None."""

    eps: float

    def bound(self, node: Node, kernels: Kernels) -> Bound:
        x, *parts = node.args
        weight, bias = (None if one is None else one.value for one in parts)
        assert x.dtype is not None
        return NativeLayerNorm(kernels.library, x.shape[-1], weight, bias, self.eps, x.dtype), (x,)


@dataclass(frozen=True, slots=True)
class Rotation:
    """`NativeRotation` of x by cosines and sines."""

    dim: int
    dtype: torch.dtype

    def bound(self, node: Node, kernels: Kernels) -> Bound:
        return self.native(kernels), node.args

    def native(self, kernels: Kernels) -> NativeRotation:
        return NativeRotation(kernels.library, self.dim, self.dtype)


@dataclass(frozen=True, slots=True)
class Behind:
    """The first argument, once the second has been computed."""

    def bound(self, node: Node, kernels: Kernels) -> Bound:
        del kernels
        return _first, node.args


@dataclass(frozen=True, slots=True)
class Attention:
    """Call `number` of the step's attention: of queries, keys, values, and sinks or none."""

    number: int

    def bound(self, node: Node, kernels: Kernels) -> Bound:
        return partial(kernels.attention.compute, self.number), node.args


@dataclass(frozen=True, slots=True)
class JoinedAttention:
    """The same, of rows with queries, keys and values side by side; and the tables of the rotation if there is one."""

    number: int
    rotation: Rotation | None

    def bound(self, node: Node, kernels: Kernels) -> Bound:
        rotation = None if self.rotation is None else self.rotation.native(kernels)
        return partial(kernels.attention.compute_joined, self.number, rotation), node.args


@dataclass(frozen=True, slots=True)
class Experts:
    """A layer's experts: of rows, choices and their weights; and then two stacks and two biases of them, or None."""

    dtype: torch.dtype
    gate: ExpertGate
    inner: int
    inputs: int
    outputs: int

    def bound(self, node: Node, kernels: Kernels) -> Bound:
        x, choices, weights, gate_up, down, *biases = node.args
        gate_up_bias, down_bias = (None if one is None else one.value for one in biases)
        made = partial(PackedStack.of_contents, kernels.library, self.dtype)
        first = made(gate_up.value, gate_up_bias, self.inner * 2, self.inputs, is_paired=True)
        second = made(down.value, down_bias, self.outputs, self.inner, is_paired=False)
        experts = PackedExperts(kernels.library, self.dtype, self.gate, first, second)
        return partial(_run_experts, experts), (x, choices, weights)


KERNEL_CALLS: tuple[type[Any], ...] = (
    Product,
    Norm,
    LayerNorm,
    Rotation,
    Behind,
    Attention,
    JoinedAttention,
    Experts,
)


def bind(nodes: list[Node], kernels: Kernels) -> None:
    """Puts functions in the place of the calls in `nodes`, whose constants have their values. Raises ValueError if a
    constant has another size than its call reads."""
    for node in nodes:
        bound: Callable[[Node, Kernels], Bound] | None = getattr(node.target, "bound", None)
        if isinstance(node.target, KERNEL_CALLS) and bound is not None:
            node.target, node.args = bound(node, kernels)


def _first(x: Tensor, done: Tensor) -> Tensor:
    del done
    return x


def _run_experts(experts: PackedExperts, x: Tensor, choices: Tensor, weights: Tensor) -> Tensor:
    return grouped_experts(x, choices, weights, experts)
