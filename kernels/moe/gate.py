"""How the gate and up outputs of an expert become one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels.elementwise.gated import Gate, gated


@dataclass(frozen=True, slots=True)
class ClampedSwiglu:
    """(up + 1) * gate * sigmoid(alpha * gate), the gate at most `limit` and up within -limit .. limit: gpt-oss."""

    alpha: float = 1.702
    limit: float = 7.0

    def __call__(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(min=-self.limit, max=self.limit)
        return (up + 1) * gate * torch.sigmoid(self.alpha * gate)


ExpertGate = Gate | ClampedSwiglu


def expert_gated(gate_up: Tensor, gate: ExpertGate) -> Tensor:
    """`gate_up` is [rows, 2 * inner], gate first; returns [rows, inner]."""
    return gate(gate_up) if isinstance(gate, ClampedSwiglu) else gated(gate_up, gate)
