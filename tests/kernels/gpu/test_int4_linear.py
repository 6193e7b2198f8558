"""Products with 4-bit weights in groups against float64."""

from __future__ import annotations

import pytest
import torch

from slipstream.kernels.linear.gpu.int4_linear import (
    Int4Config,
    choose_config,
    dequantize_sorted,
    int4_linear,
    random_weight,
)
from slipstream.kernels.quantization.quantized_weight import Int4Weight, dequantize

TOLERANCE = {torch.bfloat16: 5e-3, torch.float16: 1e-3}


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "group"),
    [(1, 72, 256, 128), (3, 40, 192, 32), (17, 130, 384, 384), (64, 24, 96, 48), (65, 40, 256, 64)],
)
def test_products(device: torch.device, dtype: torch.dtype, rows: int, outputs: int, inputs: int, group: int) -> None:
    torch.manual_seed(rows)
    weight = random_weight(outputs, inputs, group, device)
    x = torch.randn(rows, inputs + 8, device=device).to(dtype)[:, :inputs]
    bias = torch.randn(outputs, device=device).to(dtype)
    out = int4_linear(x, weight, bias)
    assert out.dtype == dtype
    expected = x.double() @ dequantize(weight, torch.float64).t() + bias.double()
    assert relative_error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("rows", [2, 70])
def test_inputs_sorted_by_group_meet_their_own_weights(device: torch.device, rows: int) -> None:
    torch.manual_seed(0)
    plain = random_weight(48, 128, 32, device)
    perm = torch.randperm(128, device=device).to(torch.int32)
    weight = Int4Weight(plain.codes, plain.scales, plain.zeros, perm)
    x = torch.randn(rows, 128, device=device).bfloat16()
    expected = x.double() @ dequantize(weight, torch.float64).t()
    assert relative_error(int4_linear(x, weight), expected) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("splits", [2, 3, 5])
def test_split_inputs_give_the_same_sums(device: torch.device, splits: int) -> None:
    torch.manual_seed(0)
    weight = random_weight(70, 640, 128, device)
    x, bias = torch.randn(5, 640, device=device).bfloat16(), torch.randn(70, device=device).bfloat16()
    config = Int4Config(block_rows=16, block_outputs=32, num_splits=splits, num_warps=4, num_stages=3)
    expected = x.double() @ dequantize(weight, torch.float64).t() + bias.double()
    assert relative_error(int4_linear(x, weight, bias, config), expected) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
def test_the_dequantised_matrix_is_the_definition(device: torch.device, scale_dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = random_weight(5, 24 * 8, 24, device)
    weight = Int4Weight(plain.codes, plain.scales.to(scale_dtype), plain.zeros)
    torch.testing.assert_close(dequantize_sorted(weight, torch.float32), dequantize(weight))


def test_every_output_is_written(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight, x = random_weight(33, 256, 128, device), torch.randn(3, 256, device=device).bfloat16()
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(float("nan")))
    config = Int4Config(block_rows=16, block_outputs=16, num_splits=2, num_warps=4, num_stages=3)
    assert int4_linear(x, weight, config=config).isfinite().all()
    assert int4_linear(x, weight).isfinite().all()
    assert dequantize_sorted(weight, torch.float32).isfinite().all()


@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize(("outputs", "inputs"), [(6144, 4096), (4096, 14336), (28672, 4096), (2048, 2048)])
def test_programs_fill_the_gpu_at_the_sizes_of_llama(rows: int, outputs: int, inputs: int) -> None:
    config = choose_config(rows, outputs, inputs // 128)
    programs = -(-rows // config.block_rows) * -(-outputs // config.block_outputs) * config.num_splits
    ahead_bytes = config.block_outputs * 64 * (config.num_stages - 1)
    assert ahead_bytes * min(2, programs / 132) >= 24_000


@pytest.mark.parametrize("outputs", [64, 320, 1000, 4096])
@pytest.mark.parametrize("rows", [1, 17, 64])
def test_every_split_has_steps(rows: int, outputs: int) -> None:
    for num_steps in range(1, 200):
        num_splits = choose_config(rows, outputs, num_steps).num_splits
        assert (num_splits - 1) * -(-num_steps // num_splits) < num_steps


def test_what_does_not_fit_together_is_refused(device: torch.device) -> None:
    weight, x = random_weight(16, 64, 32, device), torch.randn(2, 64, device=device).bfloat16()
    with pytest.raises(ValueError, match="x must be"):
        int4_linear(x[:, :32], weight)
    with pytest.raises(ValueError, match="x must be bfloat16 or float16"):
        int4_linear(x.float(), weight)
    with pytest.raises(ValueError, match="bias must be"):
        int4_linear(x, weight, x[0])
    with pytest.raises(ValueError, match="groups of a multiple of 16"):
        int4_linear(x, random_weight(16, 64, 8, device))
    empty_split = Int4Config(block_rows=16, block_outputs=16, num_splits=3, num_warps=4, num_stages=3)
    with pytest.raises(ValueError, match="leave steps to every split"):
        int4_linear(x[:, :32].repeat(1, 16), random_weight(16, 512, 128, device), config=empty_split)
