"""Products of few rows against float64: dense and fp8, with everything that is fused into them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipstream.kernels.linear.gpu.decode_linear import (
    DecodeLinearConfig,
    choose_config,
    decode_linear,
    decode_linear_reference,
)
from slipstream.kernels.quantization.quantized_weight import dequantize, quantize_fp8

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3}


def relative_error(out: Tensor, expected: Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


def random_inputs(
    device: torch.device, dtype: torch.dtype, rows: int, outputs: int, inputs: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, bias, norm_weight"""
    torch.manual_seed(rows + outputs + inputs)
    weight = torch.randn(outputs, inputs, device=device) * inputs**-0.5
    vectors = torch.randn(outputs, device=device), torch.randn(inputs, device=device)
    x = torch.randn(rows, inputs + 3, device=device).to(dtype)[:, :inputs]
    return x, weight.to(dtype), *(vector.to(dtype) for vector in vectors)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"), [(1, 37, 200), (1, 64, 512), (2, 48, 96), (17, 70, 300), (64, 33, 40)]
)
def test_product_with_bias(device: torch.device, dtype: torch.dtype, rows: int, outputs: int, inputs: int) -> None:
    x, weight, bias, _ = random_inputs(device, dtype, rows, outputs, inputs)
    out = decode_linear(x, weight, bias)
    assert out.dtype == dtype
    assert relative_error(out, decode_linear_reference(x, weight, bias)) < TOLERANCE[dtype]


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("splits", [1, 3])
def test_norm_before_and_addition_after(device: torch.device, rows: int, gated: bool, splits: int) -> None:
    x, weight, bias, norm_weight = random_inputs(device, torch.float32, rows, 44, 160)
    config = DecodeLinearConfig(1 if rows == splits == 1 else 16, 16, 32, splits, num_warps=4, num_stages=2)
    stream = torch.randn(rows, 50, device=device)
    add_to = stream[:, : 22 if gated else 44]
    kept = stream.clone()
    expected = decode_linear_reference(x, weight, bias, norm_weight=norm_weight, eps=0.1, gated=gated, add_to=add_to)
    out = decode_linear(x, weight, bias, norm_weight=norm_weight, eps=0.1, gated=gated, add_to=add_to, config=config)
    assert out.data_ptr() == add_to.data_ptr()
    assert relative_error(out, expected) < 1e-5
    assert torch.equal(stream[:, add_to.shape[1] :], kept[:, add_to.shape[1] :])


@pytest.mark.parametrize("rows", [1, 5])
def test_a_gate_of_gelu(device: torch.device, rows: int) -> None:
    x, weight, _, norm_weight = random_inputs(device, torch.float32, rows, 44, 96)
    out = decode_linear(x, weight, norm_weight=norm_weight, eps=0.1, gated=True, gate="gelu_tanh")
    expected = decode_linear_reference(x, weight, norm_weight=norm_weight, eps=0.1, gated=True, gate="gelu_tanh")
    assert relative_error(out, expected) < 1e-5


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("block", [None, (32, 64)], ids=["channel", "block"])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_fp8_weights(device: torch.device, rows: int, block: tuple[int, int] | None, gated: bool) -> None:
    x, dense, bias, norm_weight = random_inputs(device, torch.bfloat16, rows, 128, 192)
    dense[3] *= 8  # scales differ from row to row
    weight = quantize_fp8(dense, block)
    out = decode_linear(x, weight, bias, norm_weight=norm_weight, eps=1e-5, gated=gated)
    wide = dequantize(weight, torch.float64)
    expected = decode_linear_reference(x, wide, bias, norm_weight=norm_weight, eps=1e-5, gated=gated)
    assert relative_error(out, expected) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_has_the_same_bits_whatever_the_other_rows_are(device: torch.device, rows: int) -> None:
    x, weight, _, _ = random_inputs(device, torch.bfloat16, 9, 40, 128)
    config = choose_config(9, 40, 128, weight_bytes=2)
    assert torch.equal(decode_linear(x[:rows], weight, config=config), decode_linear(x, weight, config=config)[:rows])


def test_every_output_is_written(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _, _ = random_inputs(device, torch.float32, 3, 45, 64)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(float("nan")))
    config = DecodeLinearConfig(16, 16, 16, 2, num_warps=4, num_stages=2)
    assert decode_linear(x, weight, config=config).isfinite().all()


@pytest.mark.parametrize("rows", [1, 2, 16, 17, 64])
@pytest.mark.parametrize("weight_bytes", [1, 2])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(6144, 4096), (4096, 14336), (14336, 4096), (768, 2048), (128256, 4096)]
)
def test_programs_fill_the_gpu_at_the_sizes_of_llama(
    rows: int, weight_bytes: int, gated: bool, outputs: int, inputs: int
) -> None:
    config = choose_config(rows, outputs, inputs, weight_bytes, gated=gated)
    programs = -(-outputs // config.block_outputs) * config.num_splits
    assert programs >= 90
    tile = config.block_outputs * (2 if gated else 1) * weight_bytes + (0 if rows == 1 else config.block_rows * 2)
    ahead_bytes = tile * config.block_inputs * (config.num_stages - 1)
    assert ahead_bytes * min(2, programs / 132) >= 26_000
    assert ahead_bytes + tile * config.block_inputs < 220_000


def test_what_does_not_fit_together_is_refused(device: torch.device) -> None:
    x, weight = torch.randn(2, 32, device=device), torch.randn(8, 32, device=device)
    with pytest.raises(ValueError, match="x must be"):
        decode_linear(torch.randn(65, 32, device=device), weight)
    with pytest.raises(ValueError, match="weight must be"):
        decode_linear(x, weight.t())
    with pytest.raises(ValueError, match="bias must be"):
        decode_linear(x, weight, weight[0])
    with pytest.raises(ValueError, match="add_to must be"):
        decode_linear(x, weight, add_to=x)
    with pytest.raises(ValueError, match="weight must have scales of whole runs"):
        decode_linear(x, quantize_fp8(weight, (4, 12)))
