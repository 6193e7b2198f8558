"""From fp8 to the types that kernels compute in, by the fast ways of an H100 or H200."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widened(tile):
    """In float32."""
    if tile.dtype == tl.float8e4nv:
        tile = tile.to(tl.float16)  # exact, and one instruction for two
    return tile.to(tl.float32)


@triton.jit
def narrowed(tile, dtype: tl.constexpr):
    """In `dtype`, for matrix units."""
    if tile.dtype == tl.float8e4nv:
        # By way of float32: the direct conversion of float16 to bfloat16 runs at 16 a cycle and multiprocessor, less
        # than the 19 bytes a cycle that memory delivers.
        tile = tile.to(tl.float16).to(tl.float32)
    return tile.to(dtype)
