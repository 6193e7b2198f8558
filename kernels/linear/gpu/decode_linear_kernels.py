"""The kernels of `decode_linear`, which says what they compute and how the work is cut.

The number of rows changes from step to step and is not specialised on: Triton would compile a kernel for 1, one for
multiples of 16 and one for all others, each while a request waits for a token. GATED is 0, or says which function the
gate has: 1 silu, 2 the tanh form of gelu.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream.kernels.elementwise.gpu.gated import opened
from slipstream.kernels.quantization.gpu.fp8_codes import narrowed, widened


@triton.jit(do_not_specialize=["num_rows"])
def gemv_kernel(
    x,  # [in]
    weight,  # [out, in], or [2 * out, in] with the gate first
    norm_weight,  # [in]
    block_scales,  # [ceil(outputs / SCALE_OUTPUTS), ceil(in / SCALE_INPUTS)]
    scales,  # [outputs]
    bias,  # [outputs]
    out,  # [1, out]
    num_rows,
    num_outputs,
    num_inputs,
    out_stride,
    eps,
    HAS_NORM: tl.constexpr,
    GATED: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK_SCALE: tl.constexpr,
    SCALE_OUTPUTS: tl.constexpr,
    SCALE_INPUTS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    first = tl.program_id(0) * BLOCK_OUTPUTS
    outputs = first + tl.arange(0, BLOCK_OUTPUTS)
    # Outputs past the end read the last row again, so that only stores need a mask.
    rows = tl.minimum(outputs, num_outputs - 1).to(tl.int64)[:, None] * num_inputs
    up_rows = rows + num_outputs.to(tl.int64) * num_inputs
    columns = tl.arange(0, BLOCK_INPUTS)
    sums = tl.zeros((BLOCK_OUTPUTS, BLOCK_INPUTS), tl.float32)
    up_sums = tl.zeros((BLOCK_OUTPUTS, BLOCK_INPUTS), tl.float32)
    squares = tl.zeros((BLOCK_INPUTS,), tl.float32)
    scale_columns = tl.cdiv(num_inputs, SCALE_INPUTS)
    for start in tl.range(0, num_inputs, BLOCK_INPUTS, num_stages=STAGES):
        at = start + columns
        inside = (at < num_inputs) | EVEN
        row = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if HAS_NORM:
            squares += row * row
            row *= tl.load(norm_weight + at, mask=inside, other=0.0).to(tl.float32)
        gate_row = row
        if BLOCK_SCALE:
            gate_row = row * tl.load(block_scales + first // SCALE_OUTPUTS * scale_columns + start // SCALE_INPUTS)
        tile = tl.load(weight + rows + at[None, :], mask=inside[None, :], other=0.0, eviction_policy="evict_first")
        sums += widened(tile) * gate_row[None, :]
        if GATED:
            up_row = row
            if BLOCK_SCALE:
                up_first = (first + num_outputs) // SCALE_OUTPUTS
                up_row = row * tl.load(block_scales + up_first * scale_columns + start // SCALE_INPUTS)
            up = tl.load(weight + up_rows + at[None, :], mask=inside[None, :], other=0.0, eviction_policy="evict_first")
            up_sums += widened(up) * up_row[None, :]
    y, y_up = tl.sum(sums, axis=1), tl.sum(up_sums, axis=1)
    if HAS_NORM:
        divisor = tl.rsqrt(tl.sum(squares) / num_inputs + eps)
        y, y_up = y * divisor, y_up * divisor
    inside = outputs < num_outputs
    y = _finished(y, y_up, scales, bias, outputs, inside, num_outputs, GATED, HAS_SCALES, HAS_BIAS)
    if ADDS:
        y += tl.load(out + outputs, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + outputs, y.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "steps_of_split"])
def skinny_kernel(
    x,  # [rows, in]
    weight,
    norm_weight,
    block_scales,
    parts,  # [splits, 1 or 2 if gated, rows, out] float32 where the inputs are split
    part_squares,  # [splits, rows] float32, likewise
    scales,
    bias,
    out,  # [rows, out]
    num_rows,
    num_outputs,
    num_inputs,
    out_stride,
    eps,
    x_stride,
    steps_of_split,
    HAS_NORM: tl.constexpr,
    GATED: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK_SCALE: tl.constexpr,
    SCALE_OUTPUTS: tl.constexpr,
    SCALE_INPUTS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    first = tl.program_id(0) * BLOCK_OUTPUTS
    split = tl.program_id(1)
    outputs = first + tl.arange(0, BLOCK_OUTPUTS)
    weight_rows = tl.minimum(outputs, num_outputs - 1).to(tl.int64)[:, None] * num_inputs
    up_rows = weight_rows + num_outputs.to(tl.int64) * num_inputs
    rows = tl.arange(0, BLOCK_ROWS)
    x_rows = rows[:, None] * x_stride
    columns = tl.arange(0, BLOCK_INPUTS)
    y = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    y_up = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    squares = tl.zeros((BLOCK_ROWS,), tl.float32)
    scale_columns = tl.cdiv(num_inputs, SCALE_INPUTS)
    begin = split * steps_of_split * BLOCK_INPUTS
    end = tl.minimum(begin + steps_of_split * BLOCK_INPUTS, num_inputs)
    for start in tl.range(begin, end, BLOCK_INPUTS, num_stages=STAGES):
        at = start + columns
        inside = ((at < num_inputs) | EVEN)[None, :]
        # Rows that pad are not read: a copy past the L1 would take bandwidth of the L2 from the weight.
        tile_x = tl.load(x + x_rows + at[None, :], mask=inside & (rows < num_rows)[:, None], other=0.0)
        if HAS_NORM:
            wide = tile_x.to(tl.float32)
            squares += tl.sum(wide * wide, axis=1)
            gain = tl.load(norm_weight + at[None, :], mask=inside, other=0.0).to(tl.float32)
            tile_x = (wide * gain).to(x.dtype.element_ty)
        tile = tl.load(weight + weight_rows + at[None, :], mask=inside, other=0.0, eviction_policy="evict_first")
        if BLOCK_SCALE:
            scale = tl.load(block_scales + first // SCALE_OUTPUTS * scale_columns + start // SCALE_INPUTS)
            y += tl.dot(tile_x, narrowed(tile, x.dtype.element_ty).T, input_precision="ieee") * scale
        else:
            y = tl.dot(tile_x, narrowed(tile, x.dtype.element_ty).T, y, input_precision="ieee")
        if GATED:
            up = tl.load(weight + up_rows + at[None, :], mask=inside, other=0.0, eviction_policy="evict_first")
            if BLOCK_SCALE:
                up_first = (first + num_outputs) // SCALE_OUTPUTS
                scale = tl.load(block_scales + up_first * scale_columns + start // SCALE_INPUTS)
                y_up += tl.dot(tile_x, narrowed(up, x.dtype.element_ty).T, input_precision="ieee") * scale
            else:
                y_up = tl.dot(tile_x, narrowed(up, x.dtype.element_ty).T, y_up, input_precision="ieee")
    inside = (rows < num_rows)[:, None] & (outputs < num_outputs)[None, :]
    if SPLIT:
        halves: tl.constexpr = 2 if GATED else 1
        at = (split * halves * num_rows + rows)[:, None].to(tl.int64) * num_outputs + outputs[None, :]
        tl.store(parts + at, y, mask=inside)
        if GATED:
            tl.store(parts + at + num_rows.to(tl.int64) * num_outputs, y_up, mask=inside)
        if HAS_NORM:
            tl.store(part_squares + split * num_rows + rows, squares, mask=(rows < num_rows) & (first == 0))
    else:
        if HAS_NORM:
            divisor = tl.rsqrt(squares / num_inputs + eps)[:, None]
            y, y_up = y * divisor, y_up * divisor
        y = _finished(y, y_up, scales, bias, outputs[None, :], inside, num_outputs, GATED, HAS_SCALES, HAS_BIAS)
        at = rows[:, None].to(tl.int64) * out_stride + outputs[None, :]
        if ADDS:
            y += tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def join_kernel(
    parts,
    part_squares,
    scales,
    bias,
    out,
    num_rows,
    num_outputs,
    num_inputs,
    out_stride,
    eps,
    HAS_NORM: tl.constexpr,
    GATED: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
):
    """The end of a split product: one program a row and run of outputs."""
    outputs = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    row = tl.program_id(1)
    inside = outputs < num_outputs
    halves: tl.constexpr = 2 if GATED else 1
    y = tl.zeros((BLOCK_OUTPUTS,), tl.float32)
    y_up = tl.zeros((BLOCK_OUTPUTS,), tl.float32)
    for split in tl.static_range(NUM_SPLITS):
        at = parts + (split * halves * num_rows + row).to(tl.int64) * num_outputs + outputs
        y += tl.load(at, mask=inside, other=0.0)
        if GATED:
            y_up += tl.load(at + num_rows.to(tl.int64) * num_outputs, mask=inside, other=0.0)
    if HAS_NORM:
        squares = tl.load(part_squares + row)
        for split in tl.static_range(1, NUM_SPLITS):
            squares += tl.load(part_squares + split * num_rows + row)
        divisor = tl.rsqrt(squares / num_inputs + eps)
        y, y_up = y * divisor, y_up * divisor
    y = _finished(y, y_up, scales, bias, outputs, inside, num_outputs, GATED, HAS_SCALES, HAS_BIAS)
    at = out + row.to(tl.int64) * out_stride + outputs
    if ADDS:
        y += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _finished(
    y,
    y_up,
    scales,
    bias,
    outputs,
    inside,
    num_outputs,
    GATED: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Sums with scales and bias of their outputs, and the gate."""
    known = outputs < num_outputs
    if HAS_SCALES:
        y *= tl.load(scales + outputs, mask=known, other=0.0)
    if HAS_BIAS:
        y += tl.load(bias + outputs, mask=known, other=0.0).to(tl.float32)
    if GATED:
        if HAS_SCALES:
            y_up *= tl.load(scales + num_outputs + outputs, mask=known, other=0.0)
        if HAS_BIAS:
            y_up += tl.load(bias + num_outputs + outputs, mask=known, other=0.0).to(tl.float32)
        y = opened(y, GATED == 2) * y_up
    return y
