"""The gate of a SwiGLU feed-forward block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` (https://arxiv.org/abs/2002.05202). `gate_up` is [tokens, 2 * dim], gate first; returns
    [tokens, dim]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
