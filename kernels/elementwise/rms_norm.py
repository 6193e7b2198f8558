"""Root-mean-square normalisation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension (https://arxiv.org/abs/1910.07467), in x's dtype.

    `x` is [..., dim]; `weight` is [dim], or [heads, dim] where every head has its own. The mean is taken in float32.
    A weight of a wider type than x is multiplied with before anything is rounded.
    """
    if weight.dtype.itemsize > x.dtype.itemsize:
        return rms_norm(x.to(weight.dtype), weight, eps).to(x.dtype)
    if weight.dim() == 1:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x, weight.shape[-1:], None, eps) * weight
