"""Which functions a graph's activations are recognised as."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.moe.gate import ClampedSwiglu, ExpertGate, expert_gated
from slipstream.workers.models.general.execution.activations import activation_of
from slipstream.workers.models.general.execution.native_experts import _gate
from slipstream.workers.models.general.graph.step_graph import Node, StepGraph

aten = torch.ops.aten
WIDTH = 24  # of gates and of what they multiply, together


def recognised(*calls: tuple[Any, ...]) -> str | None:
    """What these calls make, each of the one before it: a target and its other arguments."""
    shape, dtype = (1, 4, 8), torch.float32
    nodes = [Node(None, shape=shape, dtype=dtype)]
    for target, *args in calls:
        nodes.append(Node(target, (nodes[-1], *args), {}, shape, dtype))
    inputs = Node(None), Node(None), Node(None)
    found = activation_of(nodes[0], StepGraph(nodes, inputs, nodes[-1]).users())
    return found[1] if found is not None and found[0] is nodes[-1] else None


SILU, CLAMP = aten.silu.default, aten.clamp.default


def test_an_activation_is_known_by_its_values() -> None:
    assert recognised((SILU,)) == "silu"
    assert recognised((aten.relu.default,)) == "relu"
    assert recognised((aten.gelu.default,)) == "gelu"


@pytest.mark.parametrize("limit", [10.0, 16.0, 1000.0])
def test_a_clamp_beyond_usual_numbers_is_not_dropped(limit: float) -> None:
    assert recognised((CLAMP, None, limit), (SILU,)) is None
    assert recognised((SILU,), (CLAMP, None, limit)) is None
    assert recognised((CLAMP, -limit, None), (aten.relu.default,)) == "relu"  # which gives zero all the same


def gate_of(function: Callable[[Tensor, Tensor], Tensor], **fields: Any) -> ExpertGate | None:
    """What a layer of experts is recognised to have that makes one number of a gate and an up number."""
    module = SimpleNamespace(is_concatenated=True, _apply_gate=lambda rows: function(*rows.chunk(2, dim=-1)), **fields)
    return _gate(module, WIDTH)


def test_the_gate_of_experts_is_known_by_its_values() -> None:
    clamped = ClampedSwiglu(limit=20.0)
    assert gate_of(lambda gate, up: F.silu(gate) * up) == "silu"
    assert gate_of(lambda gate, up: F.gelu(gate, approximate="tanh") * up) == "gelu_tanh"
    assert gate_of(lambda gate, up: expert_gated(torch.cat((gate, up), -1), clamped), limit=20.0) == clamped


@pytest.mark.parametrize("limit", [7.0, 10.0, 16.0])
def test_a_clamp_in_the_gate_of_experts_is_not_dropped(limit: float) -> None:
    assert gate_of(lambda gate, up: F.silu(gate.clamp(max=limit)) * up) is None
    assert gate_of(lambda gate, up: F.silu(gate) * up.clamp(max=limit)) is None
    assert gate_of(lambda gate, up: F.silu(gate) * up.clamp(min=-limit)) is None
