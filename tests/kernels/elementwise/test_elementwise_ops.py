"""Norm, gate and rotary embedding against their formulas, written out in float64."""

from __future__ import annotations

import cmath

import pytest
import torch

from slipstream.kernels.elementwise.gated import Gate, gated
from slipstream.kernels.elementwise.rms_norm import rms_norm
from slipstream.kernels.elementwise.rotary import rotary_angles, rotary_embedding

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("weight_shape", [(48,), (3, 48)], ids=["shared", "per_head"])
def test_rms_norm_divides_by_the_root_mean_square(dtype: torch.dtype, weight_shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 3, 48).to(dtype), torch.randn(weight_shape).to(dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 0.1).sqrt() * weight.double()
    got = rms_norm(x, weight, 0.1)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_norm_with_a_wide_weight_is_rounded_once() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 48).bfloat16(), torch.randn(48)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 0.1).sqrt() * weight
    got = rms_norm(x, weight, 0.1)
    assert got.dtype == x.dtype
    torch.testing.assert_close(got.double(), expected, atol=1e-6, rtol=2**-8)  # half a step of bfloat16 is 2^-9


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_the_first_half_gates_the_second(dtype: torch.dtype, gate: Gate) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(7, 22).to(dtype)
    x, up = gate_up.double()[:, :11], gate_up.double()[:, 11:]
    opened = x / (1 + (-x).exp())
    if gate == "gelu_tanh":
        opened = x / 2 * (1 + ((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)).tanh())
    expected = opened * up
    got = gated(gate_up, gate)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rotary_embedding_turns_each_pair_of_halves_by_its_angle(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, positions = torch.randn(4, 2, 6).to(dtype), torch.tensor([0, 1, 7, 4000])
    inv_freq = torch.tensor([1.0, 0.1, 0.01])
    got = rotary_embedding(x, *rotary_angles(positions, inv_freq, 1.5, dtype))
    assert got.dtype == dtype
    for token, position in enumerate(positions.tolist()):
        for head in range(2):
            for i, frequency in enumerate(inv_freq.tolist()):
                pair = complex(x[token, head, i].item(), x[token, head, i + 3].item())
                turned = pair * cmath.exp(1j * position * frequency) * 1.5
                expected = torch.tensor([turned.real, turned.imag], dtype=torch.float64)
                # Angles of thousands of radians are exact to about 2^-12 in float32.
                tolerance = 2e-3 if dtype == torch.float32 else 5e-2
                torch.testing.assert_close(got[token, head, i::3].double(), expected, atol=tolerance, rtol=tolerance)
