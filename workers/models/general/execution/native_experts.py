"""Mixtures of experts by the native kernels, in place of transformers' functions for them (`ExpertsInterface`)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from slipstream.kernels.cpu.grouped_experts import PackedExperts, pack_experts
from slipstream.kernels.moe.gate import ClampedSwiglu, ExpertGate, expert_gated
from slipstream.workers.models.general.graph.kernel_calls import Experts
from slipstream.workers.models.general.graph.leaves import leaf
from slipstream.workers.models.general.graph.step_graph import Node

NAME = "slipstream"
NUM_PROBES = 64
TOLERANCE = 1e-4


class NativeExperts:
    """The experts of a model's layers. A layer that the kernels cannot compute is left to transformers."""

    def __init__(self, model: nn.Module, library: ctypes.CDLL) -> None:
        self._layers: list[tuple[Any, PackedExperts]] = []
        for module in model.modules():
            packed = _packed(module, library)
            if packed is not None:
                self._layers.append((module, packed))

    def __len__(self) -> int:
        return len(self._layers)

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Within it, these layers are leaves of a graph, with the numbers -1, -2 ... (see `calls`)."""
        numbers = {id(module): -1 - at for at, (module, _) in enumerate(self._layers)}

        def call(module: nn.Module, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
            return leaf(numbers[id(module)], [x, experts, weights], x.shape)

        before = [(module.config, module.config._experts_implementation) for module, _ in self._layers]
        ALL_EXPERTS_FUNCTIONS.register(NAME, call)
        try:
            for config, _ in before:
                config._experts_implementation = NAME
            yield
        finally:
            for config, implementation in reversed(before):
                config._experts_implementation = implementation
            ALL_EXPERTS_FUNCTIONS._global_mapping.pop(NAME, None)

    def call(self, number: int) -> tuple[Experts, tuple[Node | None, ...]]:
        """That of the leaf with this number, and the constants that it takes."""
        packed = self._layers[-1 - number][1]
        gate_up, down = packed.gate_up, packed.down
        call = Experts(packed.dtype, packed.gate, down.shape.inputs, gate_up.shape.inputs, down.shape.outputs)
        constants = (gate_up.contents, down.contents, gate_up.bias, down.bias)
        return call, tuple(None if one is None else _constant(one) for one in constants)


def _constant(value: Tensor) -> Node:
    return Node(None, shape=tuple(value.shape), dtype=value.dtype, value=value)


def _packed(module: Any, library: ctypes.CDLL) -> PackedExperts | None:
    """None: it is no layer of experts, or none that the kernels can compute."""
    if not getattr(module, "has_gate", False) or getattr(module, "has_post_expert_norm", False):
        return None
    gate_up, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if not isinstance(gate_up, Tensor) or not isinstance(down, Tensor) or gate_up.ndim != 3:
        return None
    if module.is_transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    gate = _gate(module, gate_up.shape[1])
    if gate is None:
        return None
    biases = (module.gate_up_proj_bias, module.down_proj_bias) if module.has_bias else (None, None)
    try:
        return pack_experts(
            library,
            gate_up.detach(),
            down.detach(),
            gate=gate,
            gate_up_bias=biases[0],
            down_bias=biases[1],
            interleaved=not module.is_concatenated,
        )
    except ValueError:
        return None


def _gate(module: Any, width: int) -> ExpertGate | None:
    """The one that does with some numbers what the module's own does."""
    numbers = _probes(width)
    own = module._apply_gate(numbers)
    rows = numbers if module.is_concatenated else torch.cat((numbers[:, ::2], numbers[:, 1::2]), dim=1)
    clamped = ClampedSwiglu(float(getattr(module, "alpha", 1.702)), float(getattr(module, "limit", 7.0)))
    gates: tuple[ExpertGate, ...] = ("silu", "gelu_tanh", clamped)
    return next((gate for gate in gates if torch.allclose(expert_gated(rows, gate), own, TOLERANCE, TOLERANCE)), None)


def _probes(width: int) -> Tensor:
    """[NUM_PROBES, width], in no order, so that gates and what they multiply are near zero and far from it, of either
    sign: a clamp of either shows."""
    near = torch.linspace(-9, 9, NUM_PROBES * width // 2)
    far = torch.logspace(1, 4, NUM_PROBES * width // 4)
    order = torch.randperm(NUM_PROBES * width, generator=torch.Generator().manual_seed(0))
    return torch.cat((near, far, -far))[order].view(NUM_PROBES, width)
