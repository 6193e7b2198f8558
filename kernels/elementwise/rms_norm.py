"""Root-mean-square normalisation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension (https://arxiv.org/abs/1910.07467).

    `x` is [..., dim]; `weight` is [dim], or [heads, dim] where every head has its own. The mean is taken in float32.
    """
    if weight.dim() == 1:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x, weight.shape[-1:], None, eps) * weight
