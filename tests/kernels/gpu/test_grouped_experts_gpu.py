"""Experts in Triton against the torch form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipstream.kernels.gpu.triton_ops import TritonOps
from slipstream.kernels.moe import grouped_experts as reference
from slipstream.kernels.moe.gate import ClampedSwiglu, ExpertGate
from slipstream.kernels.moe.gpu.grouped_experts import PairBlocks, grouped_experts
from slipstream.kernels.moe.grouped_experts import ExpertWeights, Routing
from slipstream.kernels.moe.routing import route
from slipstream.kernels.ops import MoeWeights, TorchOps


def layer(device: torch.device, gate: ExpertGate, first: int = 0, count: int = 5) -> ExpertWeights:
    torch.manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)[first : first + count]

    gate_up, biases = random(5, 2 * 40, 72) / 3, random(5, 2 * 40)
    return ExpertWeights(gate_up, random(5, 72, 40) / 6, biases, random(5, 72), gate, first)


def choices(device: torch.device, num_rows: int, top_k: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(4)
    x = torch.randn(num_rows, 72, device=device)
    return x, *route(torch.randn(num_rows, 5, device=device), top_k, renormalise=True)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", ClampedSwiglu()], ids=str)
@pytest.mark.parametrize("num_rows", [1, 50])
def test_equals_the_torch_form(device: torch.device, gate: ExpertGate, num_rows: int) -> None:
    inputs, weights = choices(device, num_rows), layer(device, gate)
    torch.testing.assert_close(
        grouped_experts(*inputs, weights), reference.grouped_experts(*inputs, weights), atol=1e-4, rtol=1e-4
    )


def test_a_rank_adds_what_its_experts_do(device: torch.device) -> None:
    inputs, whole = choices(device, 20), layer(device, "silu")
    parts = [grouped_experts(*inputs, layer(device, "silu", first, count)) for first, count in ((0, 2), (2, 3))]
    torch.testing.assert_close(parts[0] + parts[1], reference.grouped_experts(*inputs, whole), atol=1e-4, rtol=1e-4)


def test_the_op_adds_to_the_stream_what_the_torch_ops_add(device: torch.device) -> None:
    x, _, _ = choices(device, 7)
    torch.manual_seed(5)
    norm, router, bias = torch.rand(72, device=device), torch.randn(5, 72, device=device), torch.randn(5, device=device)
    moe = MoeWeights(Routing(5, 3, renormalise=False), router, bias, layer(device, ClampedSwiglu()))
    added, expected = x.clone(), x.clone()
    TritonOps().norm_experts(added, norm, 1e-5, moe)
    TorchOps().norm_experts(expected, norm, 1e-5, moe)
    torch.testing.assert_close(added, expected, atol=1e-4, rtol=1e-4)
    assert not torch.equal(added, x)


def test_each_pair_is_in_one_block_of_its_expert(device: torch.device) -> None:
    _, experts, _ = choices(device, 200, top_k=3)
    blocks = PairBlocks.of(experts, 1, 3)
    found = {
        (int(expert), int(pair))
        for expert, pairs in zip(blocks.experts.tolist(), blocks.pairs.tolist(), strict=True)
        for pair in pairs
        if pair >= 0
    }
    flat = experts.flatten().tolist()
    assert found == {(expert - 1, pair) for pair, expert in enumerate(flat) if 1 <= expert <= 3}
    assert (blocks.pairs >= 0).sum() == len(found)
