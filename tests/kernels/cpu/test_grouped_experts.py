"""The native experts as one call, in both builds, against float64 torch."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor

from slipstream.kernels.cpu.grouped_experts import PackedExperts, grouped_experts, pack_experts
from slipstream.kernels.cpu.native_library import NEEDED_FLAGS, fits, open_library
from slipstream.kernels.moe.gate import ClampedSwiglu, ExpertGate
from slipstream.kernels.moe.grouped_experts import ExpertWeights
from slipstream.kernels.moe.grouped_experts import grouped_experts as reference
from slipstream.kernels.moe.routing import route

TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 1e-2}  # of the largest result


@pytest.fixture(params=[variant for variant in NEEDED_FLAGS if fits(variant)])
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return open_library(request.param)


class Layer:
    """Random experts, biases included; the gates are large enough that the clamp counts."""

    def __init__(self, dtype: torch.dtype, num_experts: int = 6, dim: int = 96, inner: int = 72) -> None:
        rng = torch.Generator().manual_seed(7)

        def random(*shape: int) -> Tensor:
            return (torch.randn(shape, generator=rng, dtype=torch.float64) / shape[-1] ** 0.5).to(dtype)

        self.dtype = dtype
        self.gate_up, self.gate_up_bias = random(num_experts, 2 * inner, dim) * 3, random(num_experts, 2 * inner)
        self.down, self.down_bias = random(num_experts, dim, inner), random(num_experts, dim)
        self.rng = rng

    def packed(self, library: ctypes.CDLL, gate: ExpertGate) -> PackedExperts:
        biases = {"gate_up_bias": self.gate_up_bias, "down_bias": self.down_bias}
        return pack_experts(library, self.gate_up, self.down, gate=gate, **biases)

    def inputs(self, num_tokens: int, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(num_tokens, self.gate_up.shape[2], generator=self.rng).to(self.dtype)
        scores = torch.randn(num_tokens, len(self.gate_up), generator=self.rng)
        return x, *route(scores, top_k, renormalise=True)

    def exact(self, x: Tensor, experts: Tensor, weights: Tensor, gate: ExpertGate) -> Tensor:
        stacks = [t.double() for t in (self.gate_up, self.down, self.gate_up_bias, self.down_bias)]
        return reference(x.double(), experts, weights.double(), ExpertWeights(*stacks, gate))


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", ClampedSwiglu()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "top_k"), [(1, 2), (3, 1), (40, 2), (300, 4)])
def test_equals_the_reference(
    library: ctypes.CDLL, dtype: torch.dtype, gate: ExpertGate, num_tokens: int, top_k: int
) -> None:
    layer = Layer(dtype)
    inputs = layer.inputs(num_tokens, top_k)
    expected = layer.exact(*inputs, gate)
    error = (grouped_experts(*inputs, layer.packed(library, gate)) - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_whatever_is_beside_it_and_for_any_number_of_threads(
    library: ctypes.CDLL, dtype: torch.dtype
) -> None:
    layer = Layer(dtype)
    packed = layer.packed(library, "silu")
    x, experts, weights = layer.inputs(200, 2)
    whole = grouped_experts(x, experts, weights, packed)
    library.slipstream_set_num_threads(3)
    assert torch.equal(grouped_experts(x, experts, weights, packed), whole)
    library.slipstream_set_num_threads(1)
    for rows in (slice(0, 1), slice(5, 12), slice(17, 60), slice(60, 200)):
        assert torch.equal(grouped_experts(x[rows], experts[rows], weights[rows], packed), whole[rows])


def test_stacks_may_be_stored_transposed_and_interleaved(library: ctypes.CDLL) -> None:
    layer = Layer(torch.float32)
    gate, up = layer.gate_up.chunk(2, dim=1)
    gate_bias, up_bias = layer.gate_up_bias.chunk(2, dim=1)
    stored = torch.stack([gate, up], dim=2).flatten(1, 2).transpose(1, 2).contiguous()  # [experts, dim, 2 * inner]
    packed = pack_experts(
        library,
        stored.transpose(1, 2),
        layer.down.transpose(1, 2).contiguous().transpose(1, 2),
        gate=ClampedSwiglu(),
        gate_up_bias=torch.stack([gate_bias, up_bias], dim=2).flatten(1, 2),
        down_bias=layer.down_bias,
        interleaved=True,
    )
    inputs = layer.inputs(20, 2)
    assert torch.equal(
        grouped_experts(*inputs, packed), grouped_experts(*inputs, layer.packed(library, ClampedSwiglu()))
    )


def test_an_index_of_no_expert_adds_nothing(library: ctypes.CDLL) -> None:
    layer = Layer(torch.float32)
    packed = layer.packed(library, "silu")
    x, experts, weights = layer.inputs(5, 2)
    experts[:, 1], alone = 6, experts[:, :1]  # transformers' mark for experts of other ranks
    assert torch.equal(grouped_experts(x, experts, weights, packed), grouped_experts(x, alone, weights[:, :1], packed))
    experts[2] = torch.tensor([-1, 1 << 40])
    assert not grouped_experts(x, experts, weights, packed)[2].any()


def test_no_rows(library: ctypes.CDLL) -> None:
    layer = Layer(torch.float32)
    assert grouped_experts(*layer.inputs(0, 2), layer.packed(library, "silu")).shape == (0, 96)


def test_rows_of_another_type_or_width_are_refused(library: ctypes.CDLL) -> None:
    layer = Layer(torch.float32)
    packed = layer.packed(library, "silu")
    x, experts, weights = layer.inputs(3, 2)
    for wrong in (x.bfloat16(), x[:, :-1]):
        with pytest.raises(ValueError, match="x: must be"):
            grouped_experts(wrong, experts, weights, packed)
    with pytest.raises(ValueError, match="top_k_index"):
        grouped_experts(x, experts[:2], weights, packed)
    with pytest.raises(ValueError, match="do not fit together"):
        pack_experts(library, layer.gate_up, layer.down[:, :, :-1], gate="silu")
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        pack_experts(library, layer.gate_up.half(), layer.down.half(), gate="silu")
