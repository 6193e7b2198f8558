"""Rotary position embedding, in the half-split form of the Hugging Face checkpoints.

x = [ a | b ]   ->   [ a cos - b sin | b cos + a sin ]        halves of head_dim
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_angles(positions: Tensor, inv_freq: Tensor, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What `rotary_embedding` needs for a step, once for all layers.

    `positions` is [tokens], `inv_freq` is [head_dim / 2] in float32; `scale` multiplies both results (yarn's attention
    factor). Angles are taken in float32: at long contexts bfloat16 rounds neighbouring positions to one number. Returns
    (cos, signed sin), each [tokens, 1, head_dim]; the sign of the first half is already turned.
    """
    angles = positions.to(torch.float32)[:, None] * inv_freq
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return (
        torch.cat((cos, cos), dim=-1)[:, None].to(dtype),
        torch.cat((-sin, sin), dim=-1)[:, None].to(dtype),
    )


def rotary_embedding(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotates every head of `x` [tokens, heads, head_dim] (https://arxiv.org/abs/2104.09864) into a new tensor."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)
