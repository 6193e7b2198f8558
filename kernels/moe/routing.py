"""Which experts each row chooses, and with which weights."""

from __future__ import annotations

import torch
from torch import Tensor


def route(scores: Tensor, top_k: int, *, renormalise: bool) -> tuple[Tensor, Tensor]:
    """The experts with the highest of `scores` [rows, experts], the best first: their numbers (int64) and weights
    (float32), both [rows, top_k].

    Weights are shares of a softmax over all experts, or, with `renormalise`, over those that are chosen; it does not
    matter then whether the softmax or the choice comes first."""
    scores = scores.float()
    highest, experts = scores.topk(top_k, dim=-1)
    if renormalise:
        return experts, highest.softmax(dim=-1)
    return experts, torch.exp(highest - scores.logsumexp(dim=-1, keepdim=True))
