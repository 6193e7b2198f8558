"""Products of many rows with fp8 weights, both sides in e4m3, against the same rounding in float64."""

from __future__ import annotations

import pytest
import torch

from slipstream.kernels.linear.gpu.fp8_linear import (
    SMALL,
    choose_gemm,
    fp8_gemm,
    fp8_linear,
    fp8_linear_reference,
    quantize_rows,
    random_weight,
)
from slipstream.kernels.quantization.quantized_weight import dequantize


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("block", [None, (128, 128), (64, 128)], ids=str)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(65, 130, 256), (150, 64, 200), (3, 70, 128)])
def test_products_are_those_of_the_codes(
    device: torch.device, block: tuple[int, int] | None, rows: int, outputs: int, inputs: int
) -> None:
    torch.manual_seed(rows)
    weight = random_weight(block, outputs, inputs, device)
    if block is not None and rows == 3 and outputs % block[0]:
        weight = random_weight(block, block[0], inputs, device)
    x = (torch.randn(rows, inputs, device=device) * torch.rand(rows, 1, device=device).exp()).bfloat16()
    bias = torch.randn(weight.shape[0], device=device).bfloat16()
    out = fp8_linear(x, weight, bias)
    assert out.dtype == torch.bfloat16
    assert relative_error(out, fp8_linear_reference(x, weight, bias)) < 5e-3
    exact = x.double() @ dequantize(weight, torch.float64).t() + bias.double()
    assert relative_error(out, exact) < (0.05 if rows > 64 else 5e-3)


@pytest.mark.parametrize("run", [None, 128, 48])
def test_rows_are_quantised_each_with_its_own_range(device: torch.device, run: int | None) -> None:
    torch.manual_seed(0)
    wide = torch.randn(5, 330, device=device)
    wide[2] *= 1000
    wide[3] = 0
    x = wide[:, :300].bfloat16()
    codes, scales = quantize_rows(x, run)
    spread = scales.repeat_interleave(run or 300, dim=1)[:, :300]
    assert ((codes.float() * spread - x.float()).abs() <= x.float().abs() / 16 + spread * 2.0**-10).all()
    assert codes.float().abs().amax(dim=1).tolist() == [448, 448, 448, 0, 448]


def test_every_output_is_written(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight = random_weight(None, 129, 128, device)
    x = torch.randn(65, 128, device=device).bfloat16()
    empty = torch.empty

    def poisoned(*size: int, **options: object) -> torch.Tensor:
        return empty(*size, **options).view(torch.uint8).fill_(0x7F).view(options["dtype"])  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", poisoned)
    assert fp8_linear(x, weight).isfinite().all()


def test_programs_fill_the_gpu(device: torch.device) -> None:
    for rows in (128, 512, 2048, 8192):
        for outputs in (4096, 6144, 28672):
            config = choose_gemm(rows, outputs)
            programs = -(-rows // config.block_rows) * -(-outputs // config.block_outputs)
            assert config == SMALL or programs >= 264


def test_what_does_not_fit_together_is_refused(device: torch.device) -> None:
    weight = random_weight((128, 64), 128, 128, device)
    x = torch.randn(65, 128, device=device).bfloat16()
    with pytest.raises(ValueError, match="weight must have scales of blocks of 128 inputs"):
        fp8_linear(x, weight)
    with pytest.raises(ValueError, match="x must be"):
        fp8_linear(x[:, :64], weight)
    weight = random_weight(None, 128, 128, device)
    codes, scales = quantize_rows(x)
    with pytest.raises(ValueError, match="x_scales must be"):
        fp8_gemm(codes, scales[:3], weight, None, x.dtype)
    with pytest.raises(ValueError, match="bias must be"):
        fp8_gemm(codes, scales, weight, x[0, :5], x.dtype)
