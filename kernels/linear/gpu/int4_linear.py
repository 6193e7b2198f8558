"""Products with 4-bit weights in groups (`Int4Weight`, from AWQ and GPTQ checkpoints).

Up to `MAX_ROWS` rows the codes go from memory to the tensor cores without ever being a matrix of numbers in memory.
Four bits in the low mantissa of a number are that number plus the code: a mask and an or make two bfloat16 at a time.

    word          | c7 c6 c5 c4 | c3 c2 c1 c0 |        4 bits each
    & 0x000F000F  |          c4 |          c0 |        shifted by 4, 8 and 12: c5 c1, c6 c2, c7 c3
    | 0x43004300  |    128 + c4 |    128 + c0 |        as two bfloat16 (0x6400, 1024 + c, as two float16)

The weights come in the order 0 4 1 5 2 6 3 7, and x is put in the same order in registers. Offset and zero leave a
group's sum at its end, where its scale comes in:

    y += scale * (x . (128 + codes) - (128 + zero) * sum(x))

With more rows, a kernel writes the dequantised matrix once and the library multiplies: against the product its cost
shrinks with the number of rows. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import gcd

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.benchmark.benchmark_case import Case, rotated
from slipstream.kernels.linear.gpu.decode_linear import NUM_MULTIPROCESSORS
from slipstream.kernels.linear.gpu.decode_linear_kernels import join_kernel
from slipstream.kernels.quantization.quantized_weight import CODES_PER_WORD, Int4Weight

MAX_ROWS = 64
BLOCK_INPUTS = 128  # at most; a power of two that divides the group, so that a tile has one scale an output
MIN_GROUP = 16  # the fewest inputs that tensor cores multiply at once; groups must be a multiple
# Bits that a code is put into, and the number that they are without it.
OFFSETS = {torch.bfloat16: (0x43004300, 128.0), torch.float16: (0x64006400, 1024.0)}


@dataclass(frozen=True, slots=True)
class Int4Config:
    block_rows: int
    block_outputs: int
    num_splits: int
    num_warps: int
    num_stages: int


def choose_config(num_rows: int, num_outputs: int, num_steps: int) -> Int4Config:
    """`num_steps` is the number of tiles along the inputs. A tile of 64 outputs is 4 KB; seven ahead in two programs a
    multiprocessor are 56 KB in flight, where memory asks for 26. Blocks of 64 rows would make Triton use `wgmma`, whose
    weights must lie in shared memory: they would be written there two bytes at a time."""
    block_rows = 16 if num_rows <= 16 else 32
    programs = -(-num_rows // block_rows) * -(-num_outputs // 64)
    num_splits = max(1, min(round(2 * NUM_MULTIPROCESSORS / programs), num_steps // 4, 16))
    num_splits = triton.cdiv(num_steps, triton.cdiv(num_steps, num_splits))  # as many as get steps
    return Int4Config(block_rows, block_outputs=64, num_splits=num_splits, num_warps=4, num_stages=8)


@triton.jit(do_not_specialize=["num_rows", "steps_of_split"])
def int4_kernel(
    x,  # [rows, in]
    codes,  # [out, in / 8]
    scales,  # [out, groups]
    zeros,  # [out, groups]
    bias,  # [out]
    parts,  # [splits, rows, out] float32 where the inputs are split
    out,  # [rows, out]
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    steps_of_split,
    group_size,
    HAS_BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    OFFSET_BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    words: tl.constexpr = BLOCK_INPUTS // 8
    split = tl.program_id(2)
    outputs = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    known = tl.minimum(outputs, num_outputs - 1).to(tl.int64)  # past the end the last output is read again
    num_groups = num_inputs // group_size
    code_rows = codes + (known * (num_inputs // 8))[:, None] + tl.arange(0, words)[None, :]
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)  # neighbours share the codes in the L2
    x_rows = x + rows[:, None] * x_stride + tl.arange(0, BLOCK_INPUTS)[None, :]
    shifts = (4 * tl.arange(0, 4))[None, None, :]
    y = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    begin = split * steps_of_split * BLOCK_INPUTS
    end = tl.minimum(begin + steps_of_split * BLOCK_INPUTS, num_inputs)
    # Scales are too small for asynchronous copies: they are read a tile ahead instead.
    scale = tl.load(scales + known * num_groups + begin // group_size)
    zero = tl.load(zeros + known * num_groups + begin // group_size)
    for start in tl.range(begin, end, BLOCK_INPUTS, num_stages=STAGES):
        next_group = tl.minimum((start + BLOCK_INPUTS) // group_size, num_groups - 1)
        next_scale = tl.load(scales + known * num_groups + next_group)
        next_zero = tl.load(zeros + known * num_groups + next_group)
        tile_x = tl.load(x_rows + start, mask=(rows < num_rows)[:, None], other=0.0)
        packed = tl.load(code_rows + start // 8, eviction_policy="evict_first")
        pairs = ((packed[:, :, None] >> shifts) & 0x000F000F) | OFFSET_BITS
        low = (pairs & 0xFFFF).to(tl.int16).to(x.dtype.element_ty, bitcast=True)
        high = (pairs >> 16).to(tl.int16).to(x.dtype.element_ty, bitcast=True)
        tile = tl.join(low, high).reshape(BLOCK_OUTPUTS, BLOCK_INPUTS)
        by_pair = tile_x.reshape(BLOCK_ROWS, words, 2, 4).trans(0, 1, 3, 2).reshape(BLOCK_ROWS, BLOCK_INPUTS)
        product = tl.dot(by_pair, tile.T)
        sum_x = tl.sum(tile_x.to(tl.float32), axis=1)
        wide_scale = scale.to(tl.float32)
        y += product * wide_scale[None, :] - sum_x[:, None] * ((zero.to(tl.float32) + OFFSET) * wide_scale)[None, :]
        scale, zero = next_scale, next_zero
    inside = (rows < num_rows)[:, None] & (outputs < num_outputs)[None, :]
    if SPLIT:
        at = (split * num_rows + rows)[:, None].to(tl.int64) * num_outputs + outputs[None, :]
        tl.store(parts + at, y, mask=inside)
    else:
        if HAS_BIAS:
            y += tl.load(bias + known).to(tl.float32)[None, :]
        at = rows[:, None].to(tl.int64) * num_outputs + outputs[None, :]
        tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def dequantize_kernel(
    codes,  # [out, words]
    scales,  # [out, groups]
    zeros,  # [out, groups]
    matrix,  # [out, 8 * words]
    num_words,
    num_groups,
    words_of_group,
    BLOCK_WORDS: tl.constexpr,
):
    output = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    inside = words < num_words
    group = output * num_groups + words // words_of_group
    packed = tl.load(codes + output * num_words + words, mask=inside, other=0)
    scale = tl.load(scales + group, mask=inside, other=0.0).to(tl.float32)
    zero = tl.load(zeros + group, mask=inside, other=0).to(tl.float32)
    code = ((packed[:, None] >> (4 * tl.arange(0, 8))[None, :]) & 15).to(tl.float32)
    numbers = (code - zero[:, None]) * scale[:, None]
    at = matrix + (output * num_words + words)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(at, numbers.to(matrix.dtype.element_ty), mask=inside[:, None])


def int4_linear(x: Tensor, weight: Int4Weight, bias: Tensor | None = None, config: Int4Config | None = None) -> Tensor:
    """`x @ dequantize(weight).T + bias`: x [rows, in] in bfloat16 or float16 with dense rows, result [rows, out] in x's
    dtype. Groups must be multiples of 16 inputs. Raises ValueError."""
    num_outputs, num_inputs = weight.shape
    if x.dim() != 2 or x.shape[1] != num_inputs or x.stride(1) != 1:
        raise ValueError(f"x must be [rows, {num_inputs}] with dense rows, got {list(x.shape)}")
    if x.dtype not in OFFSETS:
        raise ValueError(f"x must be bfloat16 or float16, got {x.dtype}")
    if bias is not None and (bias.shape != (num_outputs,) or not bias.is_contiguous()):
        raise ValueError(f"bias must be contiguous [{num_outputs}], got {list(bias.shape)}")
    if not (weight.codes.is_contiguous() and weight.scales.is_contiguous() and weight.zeros.is_contiguous()):
        raise ValueError("weight must be of contiguous tensors")
    block_inputs = gcd(weight.group_size, BLOCK_INPUTS)
    if block_inputs < MIN_GROUP:
        raise ValueError(f"weight must have groups of a multiple of {MIN_GROUP} inputs, got {weight.group_size}")
    num_rows = len(x)
    if weight.perm is not None:
        x = x.index_select(1, weight.perm)
    if num_rows > MAX_ROWS:
        return F.linear(x, dequantize_sorted(weight, x.dtype), bias)
    out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    num_steps = num_inputs // block_inputs
    c = config or choose_config(num_rows, num_outputs, num_steps)
    steps_of_split = triton.cdiv(num_steps, c.num_splits)
    if (c.num_splits - 1) * steps_of_split >= num_steps:  # a split without steps would look for scales behind the last
        raise ValueError(f"config must leave steps to every split of {num_steps}, got {c}")
    parts = out  # not used
    if c.num_splits > 1:
        parts = torch.empty(c.num_splits, num_rows, num_outputs, dtype=torch.float32, device=x.device)
    offset_bits, offset = OFFSETS[x.dtype]
    vector = out if bias is None else bias
    grid = (triton.cdiv(num_rows, c.block_rows), triton.cdiv(num_outputs, c.block_outputs), c.num_splits)
    int4_kernel[grid](
        x,
        weight.codes,
        weight.scales,
        weight.zeros,
        vector,
        parts,
        out,
        num_rows,
        num_outputs,
        num_inputs,
        x.stride(0),
        steps_of_split,
        weight.group_size,
        HAS_BIAS=bias is not None,
        SPLIT=c.num_splits > 1,
        OFFSET_BITS=offset_bits,
        OFFSET=offset,
        BLOCK_ROWS=c.block_rows,
        BLOCK_OUTPUTS=c.block_outputs,
        BLOCK_INPUTS=block_inputs,
        STAGES=c.num_stages,
        num_warps=c.num_warps,
    )
    if c.num_splits > 1:
        join_kernel[(triton.cdiv(num_outputs, 128), num_rows)](
            parts,
            parts,
            vector,
            vector,
            out,
            num_rows,
            num_outputs,
            num_inputs,
            out.stride(0),
            0.0,
            HAS_NORM=False,
            GATED=False,
            HAS_SCALES=False,
            HAS_BIAS=bias is not None,
            ADDS=False,
            NUM_SPLITS=c.num_splits,
            BLOCK_OUTPUTS=128,
            num_warps=1,
        )
    return out


def dequantize_sorted(weight: Int4Weight, dtype: torch.dtype) -> Tensor:
    """The matrix [out, in] in `dtype`, its inputs in the order of the codes (that is, sorted by `perm`)."""
    num_outputs, num_inputs = weight.shape
    matrix = torch.empty(num_outputs, num_inputs, dtype=dtype, device=weight.codes.device)
    num_words, block_words = num_inputs // CODES_PER_WORD, 256
    dequantize_kernel[(num_outputs, triton.cdiv(num_words, block_words))](
        weight.codes,
        weight.scales,
        weight.zeros,
        matrix,
        num_words,
        weight.scales.shape[1],
        weight.group_size // CODES_PER_WORD,
        BLOCK_WORDS=block_words,
        num_warps=4,
    )
    return matrix


def benchmark_cases() -> tuple[Case, ...]:
    """Products of Llama-3.1-8B with groups of 128: decoding, and the dequantisation that prefill adds."""
    cases = []
    for outputs, inputs in ((6144, 4096), (28672, 4096), (4096, 14336)):
        weight_bytes = outputs * inputs // 2 + outputs * inputs // 128 * 3
        for num_rows in (1, 16, 64):
            cases.append(
                Case(
                    name=f"int4_linear {num_rows} x {outputs} x {inputs}",
                    setup=rotated(partial(_call, num_rows, outputs, inputs), weight_bytes),
                    num_bytes=weight_bytes + 2 * num_rows * (outputs + inputs),
                    target=0.5 if num_rows == 1 else None,
                )
            )
    cases.append(
        Case(
            name="int4 dequantize 28672 x 4096",
            setup=rotated(_dequantize_call, 28672 * 4096 * 5 // 2),
            num_bytes=28672 * 4096 * 5 // 2 + 28672 * 32 * 3,
            target=0.6,
        )
    )
    return tuple(cases)


def random_weight(outputs: int, inputs: int, group_size: int, device: torch.device) -> Int4Weight:
    codes = torch.randint(-(2**31), 2**31, (outputs, inputs // CODES_PER_WORD), dtype=torch.int32, device=device)
    scales = torch.rand(outputs, inputs // group_size, device=device) * (0.3 * inputs**-0.5)
    zeros = torch.randint(5, 11, scales.shape, dtype=torch.uint8, device=device)
    return Int4Weight(codes, scales.to(torch.float16), zeros)


def _call(num_rows: int, outputs: int, inputs: int, device: torch.device) -> Callable[[], object]:
    x = torch.randn(num_rows, inputs, device=device, dtype=torch.bfloat16)
    return partial(int4_linear, x, random_weight(outputs, inputs, 128, device))


def _dequantize_call(device: torch.device) -> Callable[[], object]:
    return partial(dequantize_sorted, random_weight(28672, 4096, 128, device), torch.bfloat16)
