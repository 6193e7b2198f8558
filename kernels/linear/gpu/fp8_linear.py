"""Products with fp8 weights. Up to `MAX_ROWS` rows memory is the limit: x stays as it is and the codes are widened in
registers (`decode_linear`). Above, arithmetic is: x is brought to e4m3 as well, each row with a scale of its own, or
each row and run of inputs where the weight has scales of blocks, and the tensor cores multiply codes.

    codes of x [rows, in], x_scales [rows, runs of inputs]
    y[row, out] = sum over runs of inputs:  (codes of x . codes of the weight) * x_scale * weight_scale

Rounding x to three bits of mantissa adds an error of about 2^-5 / sqrt(3) relative to each number, so a product has
about 2.5% noise of its own size before it averages out over the inputs of the next: what W8A8 serving has everywhere.

Hopper's tensor cores add fp8 products with about 14 bits; their sums are therefore taken over into float32 every
`BLOCK_INPUTS` inputs. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.benchmark.benchmark_case import Case, rotated
from slipstream.kernels.linear.gpu.decode_linear import MAX_ROWS, NUM_MULTIPROCESSORS, decode_linear, layer_cases
from slipstream.kernels.quantization.quantized_weight import FP8_MAX, Fp8Weight, dequantize

BLOCK_INPUTS = 128  # also the run of inputs that scales of blocks are for
QUANTIZE_TILE = 2048  # numbers that a program takes of short runs


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """Tile of the output and how its product is run."""

    block_rows: int
    block_outputs: int
    num_warps: int
    num_stages: int


# Sums are kept twice, those of the tensor cores and those in float32: 128 x 256 of both do not fit into the registers
# of two warpgroups. With few rows, smaller tiles make enough programs for 132 multiprocessors.
LARGE = GemmConfig(block_rows=128, block_outputs=128, num_warps=8, num_stages=4)
SMALL = GemmConfig(block_rows=64, block_outputs=128, num_warps=4, num_stages=4)


@triton.jit(do_not_specialize=["num_tiles"])
def quantize_kernel(
    x,  # [rows, in]
    codes,  # [rows, in]
    scales,  # [rows, runs]
    x_stride,
    num_inputs,
    num_runs,
    num_tiles,  # rows * runs
    largest_code,
    RUN: tl.constexpr,  # inputs of a scale, the last run may be shorter
    BLOCK_TILES: tl.constexpr,
    BLOCK_RUN: tl.constexpr,
):
    tiles = tl.program_id(0).to(tl.int64) * BLOCK_TILES + tl.arange(0, BLOCK_TILES)
    rows, runs = tiles // num_runs, tiles % num_runs
    inputs = (runs * RUN)[:, None] + tl.arange(0, BLOCK_RUN)[None, :]
    inside = (tiles < num_tiles)[:, None] & (inputs < num_inputs) & (tl.arange(0, BLOCK_RUN) < RUN)[None, :]
    values = tl.load(x + rows[:, None] * x_stride + inputs, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), axis=1) / largest_code, 1e-30)
    scaled = tl.clamp(values / scale[:, None], -largest_code, largest_code)
    tl.store(codes + rows[:, None] * num_inputs + inputs, scaled.to(tl.float8e4nv), mask=inside)
    tl.store(scales + tiles, scale, mask=tiles < num_tiles)


@triton.jit(do_not_specialize=["num_rows"])
def fp8_gemm_kernel(
    codes,  # [rows, in]
    x_scales,  # [rows, 1] or [rows, runs]
    weight,  # [out, in]
    scales,  # [out] or [blocks of outputs, runs]
    bias,  # [out]
    out,  # [rows, out]
    num_rows,
    num_outputs,
    num_inputs,
    num_runs,
    HAS_BIAS: tl.constexpr,
    BLOCK_SCALE: tl.constexpr,
    SCALE_OUTPUTS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    BAND: tl.constexpr,
):
    # Programs that run at the same time share a band of rows and neighbouring outputs, so that the L2 serves both.
    tiles_of_outputs = tl.cdiv(num_outputs, BLOCK_OUTPUTS)
    tiles_of_rows = tl.cdiv(num_rows, BLOCK_ROWS)
    program = tl.program_id(0)
    first_tile = program // (BAND * tiles_of_outputs) * BAND
    tiles_of_band = tl.minimum(tiles_of_rows - first_tile, BAND)
    in_band = program % (BAND * tiles_of_outputs)
    first_row = (first_tile + in_band % tiles_of_band) * BLOCK_ROWS
    first_output = in_band // tiles_of_band * BLOCK_OUTPUTS
    rows = first_row + tl.arange(0, BLOCK_ROWS)
    outputs = first_output + tl.arange(0, BLOCK_OUTPUTS)
    # What hangs over the edge reads the last row again and is not stored.
    read_rows = tl.minimum(rows, num_rows - 1).to(tl.int64)
    read_outputs = tl.minimum(outputs, num_outputs - 1).to(tl.int64)
    columns = tl.arange(0, BLOCK_INPUTS)
    sums = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    for start in range(0, num_inputs, BLOCK_INPUTS):
        at = start + columns
        inside = ((at < num_inputs) | EVEN)[None, :]
        tile_x = tl.load(codes + read_rows[:, None] * num_inputs + at[None, :], mask=inside, other=0.0)
        tile = tl.load(weight + read_outputs[:, None] * num_inputs + at[None, :], mask=inside, other=0.0)
        if BLOCK_SCALE:
            run = start // BLOCK_INPUTS
            x_scale = tl.load(x_scales + read_rows * num_runs + run)
            scale = tl.load(scales + read_outputs // SCALE_OUTPUTS * num_runs + run)
            sums += tl.dot(tile_x, tile.T) * x_scale[:, None] * scale[None, :]
        else:
            sums = tl.dot(tile_x, tile.T, sums, max_num_imprecise_acc=BLOCK_INPUTS)
    if not BLOCK_SCALE:
        sums *= tl.load(x_scales + read_rows)[:, None] * tl.load(scales + read_outputs)[None, :]
    if HAS_BIAS:
        sums += tl.load(bias + read_outputs).to(tl.float32)[None, :]
    inside = (rows < num_rows)[:, None] & (outputs < num_outputs)[None, :]
    at = rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(out + at, sums.to(out.dtype.element_ty), mask=inside)


def fp8_linear(x: Tensor, weight: Fp8Weight, bias: Tensor | None = None) -> Tensor:
    """`x @ dequantize(weight).T + bias`: x [rows, in] with dense rows, result [rows, out] in x's dtype. Scales of
    blocks must be for 128 inputs and a multiple of 64 outputs. Raises ValueError."""
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x must be [rows, {weight.shape[1]}], got {list(x.shape)}")
    if not len(x):
        return x.new_empty(0, weight.shape[0])
    if len(x) <= MAX_ROWS:
        return decode_linear(x, weight, bias)
    codes, x_scales = quantize_rows(x, None if weight.is_per_channel else BLOCK_INPUTS)
    return fp8_gemm(codes, x_scales, weight, bias, x.dtype)


def quantize_rows(x: Tensor, run: int | None = None) -> tuple[Tensor, Tensor]:
    """Codes [rows, in] in e4m3 and scales [rows, runs] float32 of `x` [rows, in] with dense rows: a scale for each row
    and `run` of inputs, None: for each row. Raises ValueError."""
    if x.dim() != 2 or x.stride(1) != 1:
        raise ValueError(f"x must be [rows, in] with dense rows, got {list(x.shape)} with strides {list(x.stride())}")
    num_rows, num_inputs = x.shape
    run = num_inputs if run is None else run
    num_runs = triton.cdiv(num_inputs, run)
    codes = torch.empty(num_rows, num_inputs, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(num_rows, num_runs, dtype=torch.float32, device=x.device)
    if num_rows:
        block_run = triton.next_power_of_2(run)
        block_tiles = max(1, QUANTIZE_TILE // block_run)
        quantize_kernel[(triton.cdiv(num_rows * num_runs, block_tiles),)](
            x,
            codes,
            scales,
            x.stride(0),
            num_inputs,
            num_runs,
            num_rows * num_runs,
            FP8_MAX,
            RUN=run,
            BLOCK_TILES=block_tiles,
            BLOCK_RUN=block_run,
            num_warps=min(16, max(4, block_run // 512)),
        )
    return codes, scales


def fp8_gemm(
    codes: Tensor,
    x_scales: Tensor,
    weight: Fp8Weight,
    bias: Tensor | None,
    dtype: torch.dtype,
    config: GemmConfig | None = None,
) -> Tensor:
    """The product of what `quantize_rows` gave with `weight`, in `dtype`. Raises ValueError."""
    num_rows, (num_outputs, num_inputs) = len(codes), weight.shape
    by_block = not weight.is_per_channel
    num_runs = triton.cdiv(num_inputs, BLOCK_INPUTS) if by_block else 1
    if codes.shape != (num_rows, num_inputs) or codes.dtype != torch.float8_e4m3fn or not codes.is_contiguous():
        raise ValueError(f"codes must be contiguous e4m3 [rows, {num_inputs}], got {list(codes.shape)} {codes.dtype}")
    if x_scales.shape != (num_rows, num_runs) or not x_scales.is_contiguous():
        raise ValueError(f"x_scales must be contiguous [{num_rows}, {num_runs}], got {list(x_scales.shape)}")
    if not (weight.codes.is_contiguous() and weight.scales.is_contiguous()):
        raise ValueError("weight must be of contiguous tensors")
    if by_block and weight.block[1] != BLOCK_INPUTS:
        raise ValueError(f"weight must have scales of blocks of {BLOCK_INPUTS} inputs, got {weight.block}")
    if bias is not None and (bias.shape != (num_outputs,) or not bias.is_contiguous()):
        raise ValueError(f"bias must be contiguous [{num_outputs}], got {list(bias.shape)}")
    c = config or choose_gemm(num_rows, num_outputs)
    out = torch.empty(num_rows, num_outputs, dtype=dtype, device=codes.device)
    grid = (triton.cdiv(num_rows, c.block_rows) * triton.cdiv(num_outputs, c.block_outputs),)
    fp8_gemm_kernel[grid](
        codes,
        x_scales,
        weight.codes,
        weight.scales,
        codes if bias is None else bias,
        out,
        num_rows,
        num_outputs,
        num_inputs,
        num_runs,
        HAS_BIAS=bias is not None,
        BLOCK_SCALE=by_block,
        SCALE_OUTPUTS=weight.block[0],
        EVEN=num_inputs % BLOCK_INPUTS == 0,
        BLOCK_ROWS=c.block_rows,
        BLOCK_OUTPUTS=c.block_outputs,
        BLOCK_INPUTS=BLOCK_INPUTS,
        BAND=8,
        num_warps=c.num_warps,
        num_stages=c.num_stages,
    )
    return out


def choose_gemm(num_rows: int, num_outputs: int) -> GemmConfig:
    """Large tiles where they make two rounds of programs."""
    programs = triton.cdiv(num_rows, LARGE.block_rows) * triton.cdiv(num_outputs, LARGE.block_outputs)
    return LARGE if programs >= 2 * NUM_MULTIPROCESSORS else SMALL


def fp8_linear_reference(x: Tensor, weight: Fp8Weight, bias: Tensor | None = None) -> Tensor:
    """The same in float64, x rounded to e4m3 as above where there are more rows than `MAX_ROWS`."""
    wide = x.double()
    if len(x) > MAX_ROWS:
        num_inputs = x.shape[1]
        run = num_inputs if weight.is_per_channel else BLOCK_INPUTS
        runs = F.pad(x.float(), (0, -num_inputs % run)).view(len(x), -1, run)
        scales = (runs.abs().amax(dim=2, keepdim=True) / FP8_MAX).clamp(min=1e-30)
        codes = (runs / scales).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        wide = (codes.double() * scales.double()).flatten(1)[:, :num_inputs]
    y = wide @ dequantize(weight, torch.float64).t()
    return y if bias is None else y + bias.double()


def benchmark_cases() -> tuple[Case, ...]:
    """Decoding: the layer of Llama-3.1-8B with a scale a channel and a scale a block. Prefill: its widest product,
    beside the library's own."""
    prefill = tuple(
        Case(
            name=f"fp8_linear {label} {num_rows} x 28672 x 4096",
            setup=partial(_prefill_call, num_rows, block, library),
            num_bytes=num_rows * (4096 + 28672) * 2 + 28672 * 4096,
            num_flops=2 * num_rows * 28672 * 4096,
            target=target,
        )
        for num_rows in (512, 4096)
        for label, block, library, target in (
            ("channel", None, False, 1.0),  # of the rate of bfloat16
            ("block 128", (128, 128), False, None),
            ("channel, torch._scaled_mm", None, True, None),
        )
    )
    quantize = Case(
        name="quantize_rows 4096 x 4096",
        setup=rotated(_quantize_call, 4096 * 4096 * 2),
        num_bytes=4096 * 4096 * 3 + 4096 * 4,
        target=0.6,
    )
    by_channel = layer_cases("fp8", 1, partial(random_weight, None), (1, 4, 16, 64))
    by_block = layer_cases("fp8 block 128", 1, partial(random_weight, (128, 128)), (1, 16))
    return (*by_channel, *by_block, *prefill, quantize)


def random_weight(block: tuple[int, int] | None, outputs: int, inputs: int, device: torch.device) -> Fp8Weight:
    block = (1, inputs) if block is None else block
    codes = torch.randn(outputs, inputs, device=device).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    scales = torch.rand(triton.cdiv(outputs, block[0]), triton.cdiv(inputs, block[1]), device=device) * inputs**-0.5
    return Fp8Weight(codes, scales, block)


def _quantize_call(device: torch.device) -> Callable[[], object]:
    x = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    return lambda: quantize_rows(x)


def _prefill_call(
    num_rows: int, block: tuple[int, int] | None, library: bool, device: torch.device
) -> Callable[[], object]:
    weight = random_weight(block, 28672, 4096, device)
    x = torch.randn(num_rows, 4096, device=device, dtype=torch.bfloat16)
    if not library:
        return lambda: fp8_linear(x, weight)

    def scaled_mm() -> Tensor:
        codes, x_scales = quantize_rows(x)
        return torch._scaled_mm(codes, weight.codes.t(), x_scales, weight.scales.t(), out_dtype=x.dtype)

    return scaled_mm
