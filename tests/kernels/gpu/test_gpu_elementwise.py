"""Norm and gate in Triton against their formulas in float64, and against the torch forms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from slipstream.kernels.elementwise import gated as torch_gated
from slipstream.kernels.elementwise import rms_norm as torch_rms_norm
from slipstream.kernels.elementwise.gated import Gate
from slipstream.kernels.elementwise.gpu.gated import gated
from slipstream.kernels.elementwise.gpu.rms_norm import rms_norm

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(3, 2048), (5, 100), (1, 4096), (33, 7)], ids=str)
def test_rms_norm_divides_by_the_root_mean_square(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(shape).to(device, dtype), torch.randn(shape[1]).to(device, dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    got = rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("weight_shape", [(24,), (3, 24)], ids=["shared", "per_head"])
def test_rms_norm_of_heads_within_wider_rows(device: torch.device, weight_shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    qkv, weight = torch.randn(9, 5, 24, device=device), torch.randn(weight_shape, device=device)
    heads = qkv[:, 1:4]
    torch.testing.assert_close(rms_norm(heads, weight, 0.1), torch_rms_norm.rms_norm(heads, weight, 0.1))


@pytest.mark.parametrize("residual_dtype", [torch.float32, torch.bfloat16])
def test_what_is_added_stays_in_x_and_the_norm_is_that_of_the_rounded_sum(
    device: torch.device, residual_dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, add = torch.randn(6, 3 * 96, device=device).to(residual_dtype), torch.randn(6, 96, device=device).bfloat16()
    weight = torch.randn(96, device=device).bfloat16()
    stream = x[:, 96:192]  # the rows are dense, the tensor is not
    before, total = x.clone(), (stream.float() + add.float()).to(residual_dtype)
    normed = rms_norm(stream, weight, 1e-5, add)
    assert torch.equal(stream, total)
    assert torch.equal(x[:, :96], before[:, :96])
    assert torch.equal(x[:, 192:], before[:, 192:])
    assert normed.dtype == torch.bfloat16
    expected = torch_rms_norm.rms_norm(total.float(), weight.float(), 1e-5)
    torch.testing.assert_close(normed.float(), expected, atol=1e-2, rtol=1e-2)


def test_rms_norm_refuses_what_it_cannot_read(device: torch.device) -> None:
    x, weight = torch.randn(4, 8, device=device), torch.randn(8, device=device)
    with pytest.raises(ValueError, match="x must be"):
        rms_norm(x.t(), weight, 1e-5)
    with pytest.raises(ValueError, match="weight must be"):
        rms_norm(x, weight[:4], 1e-5)
    with pytest.raises(ValueError, match="add must be"):
        rms_norm(x, weight, 1e-5, x[:2])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("shape", [(7, 11), (2, 1500), (1, 1024)], ids=str)
def test_the_first_half_gates_the_second(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int], gate: Gate
) -> None:
    torch.manual_seed(0)
    dim = shape[1]
    wide = torch.randn(shape[0], 2 * dim + 3, device=device).mul_(3).to(dtype)
    gate_up = wide[:, 1 : 2 * dim + 1]  # rows of a wider tensor
    opening, up = gate_up.double()[:, :dim], gate_up.double()[:, dim:]
    opened = opening / (1 + (-opening).exp()) if gate == "silu" else F.gelu(opening, approximate="tanh")
    got = gated(gate_up, gate)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), opened * up, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    expected = torch_gated.gated(gate_up, gate)
    torch.testing.assert_close(got, expected, atol=TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype])


def test_a_gate_refuses_an_odd_number_of_columns(device: torch.device) -> None:
    with pytest.raises(ValueError, match="gate_up must be"):
        gated(torch.randn(2, 5, device=device))


def test_a_norm_with_a_wide_weight_gives_the_type_that_is_asked_for(device: torch.device) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 64, device=device, dtype=torch.bfloat16), torch.randn(64, device=device)
    got = rms_norm(x, weight, 1e-5, dtype=x.dtype)
    assert got.dtype == x.dtype
    torch.testing.assert_close(got, torch_rms_norm.rms_norm(x, weight, 1e-5), atol=1e-2, rtol=1e-2)


def test_no_rows_are_no_work(device: torch.device) -> None:
    assert rms_norm(torch.empty(0, 8, device=device), torch.ones(8, device=device), 1e-5).shape == (0, 8)
    assert gated(torch.empty(0, 8, device=device)).shape == (0, 4)
