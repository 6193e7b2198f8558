"""The experts of a layer applied to the rows that have chosen them, in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.moe.gate import ExpertGate, expert_gated


@dataclass(frozen=True, slots=True)
class Routing:
    """How a row chooses. `renormalise`: the weights of its choices sum to one (see `route`)."""

    num_experts: int  # of the layer; a rank may hold a part of them
    top_k: int
    renormalise: bool


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Experts first .. first + len(gate_up) - 1 of a layer."""

    gate_up: Tensor  # [experts, 2 * inner, dim]: gate outputs, then up outputs
    down: Tensor  # [experts, out, inner]
    gate_up_bias: Tensor | None  # [experts, 2 * inner]
    down_bias: Tensor | None  # [experts, out]
    gate: ExpertGate
    first: int = 0


def grouped_experts(x: Tensor, experts: Tensor, weights: Tensor, layer: ExpertWeights) -> Tensor:
    """For each row of `x` [rows, dim] the sum of weight * expert(row) over its choices, `experts` and `weights` [rows,
    top_k]: [rows, out] in float32. Experts that are not in `layer` add nothing."""
    out = torch.zeros(len(x), layer.down.shape[1], dtype=torch.float32, device=x.device)
    for own in range(len(layer.gate_up)):
        rows, choices = torch.where(experts == layer.first + own)
        if len(rows) == 0:
            continue
        gate_up = F.linear(x[rows], layer.gate_up[own], _of_expert(layer.gate_up_bias, own))
        inner = expert_gated(gate_up, layer.gate)
        y = F.linear(inner, layer.down[own], _of_expert(layer.down_bias, own))
        out.index_add_(0, rows, y.float() * weights[rows, choices, None].float())
    return out


def _of_expert(bias: Tensor | None, own: int) -> Tensor | None:
    return None if bias is None else bias[own]
