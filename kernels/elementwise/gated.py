"""The gate of a gated feed-forward block (https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.elementwise.silu_mul import silu_mul

Gate = Literal["silu", "gelu_tanh"]


def gated(gate_up: Tensor, gate: Gate) -> Tensor:
    """`silu(gate) * up`, or with the tanh form of gelu. `gate_up` is [tokens, 2 * dim], gate first; returns
    [tokens, dim]."""
    if gate == "silu":
        return silu_mul(gate_up)
    opening, up = gate_up.chunk(2, dim=-1)
    return F.gelu(opening, approximate="tanh").mul_(up)
