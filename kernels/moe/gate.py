"""How the gate and up outputs of an expert become one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SiluGate:
    """silu(gate) * up"""

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up


@dataclass(frozen=True, slots=True)
class ClampedSwiglu:
    """(up + 1) * gate * sigmoid(alpha * gate), the gate at most `limit` and up within -limit .. limit: gpt-oss."""

    alpha: float = 1.702
    limit: float = 7.0

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=self.limit), up.clamp(min=-self.limit, max=self.limit)
        return (up + 1) * gate * torch.sigmoid(self.alpha * gate)


Gate = SiluGate | ClampedSwiglu
