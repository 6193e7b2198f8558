"""The gate of a gated feed-forward block in one pass: 2 * dim numbers of a row read, dim written.

Rounds once, at the end; `elementwise.gated`, the reference, rounds the gate as well. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.benchmark.benchmark_case import Case, rotated
from slipstream.kernels.elementwise.gated import Gate

BLOCK = 1024  # 8 numbers a thread of 4 warps: one load of 16 bytes each of gate and up


@triton.jit
def opened(x, GELU: tl.constexpr):
    """`x` through the gate's function: silu, or the tanh form of gelu, 0.5 x (1 + tanh(z)) = x sigmoid(2 z)."""
    z = x
    if GELU:
        z = 1.5957691216057308 * (x + 0.044715 * x * x * x)  # 2 sqrt(2 / pi)
        z = tl.where(z < -80.0, -80.0, z)  # e^80 is a float32
    return x * tl.sigmoid(z)


@triton.jit
def gated_kernel(
    gate_up,  # [tokens, 2 * dim], gate first
    out,  # [tokens, dim], contiguous
    row_stride,
    dim,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < dim
    gate = tl.load(gate_up + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + dim + column, mask=inside, other=0.0).to(tl.float32)
    product = opened(gate, GELU) * up
    tl.store(out + row * dim + column, product.to(out.dtype.element_ty), mask=inside)


def gated(gate_up: Tensor, gate: Gate = "silu") -> Tensor:
    """`silu(gate) * up`, or with the tanh form of gelu, of `gate_up` [tokens, 2 * dim] with dense rows, gate first;
    returns [tokens, dim]. Raises ValueError."""
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or gate_up.stride(1) != 1:
        raise ValueError(
            f"gate_up must be [tokens, 2 * dim] with dense rows, got {list(gate_up.shape)}"
            f" with strides {list(gate_up.stride())}"
        )
    num_tokens, dim = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_tokens, dim, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        grid = (num_tokens, triton.cdiv(dim, BLOCK))
        is_gelu = gate == "gelu_tanh"
        gated_kernel[grid](gate_up, out, gate_up.stride(0), dim, GELU=is_gelu, BLOCK=BLOCK, num_warps=4)
    return out


def benchmark_cases() -> tuple[Case, ...]:
    """Intermediate sizes of Llama-3.2-1B and 3.1-8B."""
    return tuple(
        Case(
            name=f"silu_mul bf16 {num_tokens} x {dim}",
            setup=rotated(partial(_gate, num_tokens, dim), set_bytes=6 * num_tokens * dim),
            num_bytes=6 * num_tokens * dim,
            target=0.7 if num_tokens > 1024 else None,
        )
        for num_tokens, dim in ((64, 14336), (4096, 8192), (4096, 14336))
    )


def _gate(num_tokens: int, dim: int, device: torch.device) -> Callable[[], object]:
    gate_up = torch.randn(num_tokens, 2 * dim, device=device, dtype=torch.bfloat16)
    return lambda: gated(gate_up)
