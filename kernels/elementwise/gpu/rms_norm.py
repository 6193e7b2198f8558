"""Root-mean-square normalisation, alone or after adding to the residual stream.

One program holds whole rows in registers, so everything is read and written once: of a row of `dim` numbers of b bytes
the norm moves 2 * dim * b bytes, with the addition 4 * dim * b. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.benchmark.benchmark_case import Case, rotated

MAX_DIM = 32768  # a row in the registers of a program's 16 warps: 64 numbers a thread
TILE = 2048  # numbers that a program of short rows takes together


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x,  # [tokens, heads, dim]
    add,  # [tokens, 1, dim], or not used
    weight,  # [dim] or [heads, dim]
    out,  # [tokens, heads, dim], contiguous
    num_rows,
    num_heads,
    x_token_stride,
    x_head_stride,
    add_token_stride,
    weight_head_stride,
    eps,
    dim: tl.constexpr,
    HAS_ADD: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    column = tl.arange(0, BLOCK_DIM)[None, :]
    inside = (row < num_rows) & (column < dim)
    token, head = row // num_heads, row % num_heads
    at = x + token * x_token_stride + head * x_head_stride + column
    values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if HAS_ADD:
        values += tl.load(add + token * add_token_stride + column, mask=inside, other=0.0).to(tl.float32)
        rounded = values.to(x.dtype.element_ty)
        tl.store(at, rounded, mask=inside)
        values = rounded.to(tl.float32)  # what is read from x later, as if the two were done one by one
    mean = tl.sum(values * values, axis=1, keep_dims=True) / dim
    gain = tl.load(weight + head * weight_head_stride + column, mask=inside, other=0.0).to(tl.float32)
    normed = values * tl.rsqrt(mean + eps) * gain
    tl.store(out + row * dim + column, normed.to(out.dtype.element_ty), mask=inside)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, add: Tensor | None = None, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The norm of `x` [rows, dim] or [tokens, heads, dim], where `weight` may be [heads, dim]; `elementwise.rms_norm`
    is the reference. Where there is something to add, [rows, dim], `x += add` first, in place and rounded to x's dtype.

    Rows must be dense. Returns a contiguous tensor of `dtype`, or of weight's, so that x may be a float32 residual
    stream. Raises ValueError.
    """
    if x.dim() not in (2, 3) or x.stride(-1) != 1:
        raise ValueError(f"x must be [rows, dim] or [tokens, heads, dim] with dense rows, got {_layout(x)}")
    dim = x.shape[-1]
    if not 0 < dim <= MAX_DIM:
        raise ValueError(f"x must have rows of 1 to {MAX_DIM} numbers, got {dim}")
    if weight.shape not in (x.shape[1:], x.shape[-1:]) or not weight.is_contiguous():
        raise ValueError(f"weight must be contiguous [{dim}] or [heads, {dim}] of x's heads, got {_layout(weight)}")
    if add is not None and (add.shape != x.shape or add.dim() != 2 or add.stride(1) != 1):
        raise ValueError(f"add must be like x [rows, dim] with dense rows, got {_layout(add)}")
    by_head = x if x.dim() == 3 else x[:, None]
    out = torch.empty(x.shape, dtype=dtype or weight.dtype, device=x.device)
    num_rows = by_head.shape[0] * by_head.shape[1]
    if not num_rows:
        return out
    block_dim = triton.next_power_of_2(dim)
    block_rows = max(1, TILE // block_dim)  # heads of 64 or 128 share a program
    rms_norm_kernel[(triton.cdiv(num_rows, block_rows),)](
        by_head,
        x if add is None else add,
        weight,
        out,
        num_rows,
        by_head.shape[1],
        by_head.stride(0),
        by_head.stride(1),
        0 if add is None else add.stride(0),
        dim if weight.dim() == 2 else 0,
        eps,
        dim=dim,
        HAS_ADD=add is not None,
        BLOCK_ROWS=block_rows,
        BLOCK_DIM=block_dim,
        num_warps=min(16, max(4, block_dim // 512)),  # 16 numbers a thread: two loads of 16 bytes in bfloat16
    )
    return out


def _layout(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} with strides {list(tensor.stride())}"


def benchmark_cases() -> tuple[Case, ...]:
    """Hidden sizes of Llama-3.2-1B and 3.1-8B: a decode batch, which a launch dominates, and prefill chunks."""
    return tuple(
        Case(
            name=f"add + rms_norm bf16 {num_rows} x {dim}",
            setup=rotated(partial(_added_norm, num_rows, dim), set_bytes=6 * num_rows * dim),
            num_bytes=8 * num_rows * dim,
            target=0.7 if num_rows > 1024 else None,
        )
        for num_rows, dim in ((64, 4096), (8192, 2048), (8192, 4096))
    )


def _added_norm(num_rows: int, dim: int, device: torch.device) -> Callable[[], object]:
    x, add = torch.randn(2, num_rows, dim, device=device, dtype=torch.bfloat16)
    weight = torch.randn(dim, device=device, dtype=torch.bfloat16)
    return lambda: rms_norm(x, weight, 1e-5, add)
