"""Norm, gate and rotary embedding against their formulas, written out in float64."""

from __future__ import annotations

import cmath

import pytest
import torch

from slipstream.kernels.elementwise.rms_norm import rms_norm
from slipstream.kernels.elementwise.rotary import rotary_angles, rotary_embedding
from slipstream.kernels.elementwise.silu_mul import silu_mul

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


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_silu_mul_gates_the_second_half_with_the_first(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(7, 22).to(dtype)
    gate, up = gate_up.double()[:, :11], gate_up.double()[:, 11:]
    expected = gate / (1 + (-gate).exp()) * up
    got = silu_mul(gate_up)
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
