"""Launches of attention and KV writes in shapes of production, on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from slipstream.kernels.attention.gpu.decode_attention import decode_attention
from slipstream.kernels.attention.gpu.prefill_attention import prefill_attention
from slipstream.kernels.attention.gpu.rope_kv_write import rope_kv_write
from slipstream.kernels.pages.quantized_kv import LARGEST_CODE, head_bytes

META = torch.device("meta")


def kv_layer(dtype: torch.dtype, kv_heads: int, page_tokens: int, head_dim: int) -> Tensor:
    if dtype in LARGEST_CODE:
        return torch.empty(1000, kv_heads, head_bytes(page_tokens, head_dim), dtype=dtype, device=META)
    return torch.empty(1000, kv_heads, 2, page_tokens, head_dim, dtype=dtype, device=META)


def decode(
    seqs: int = 64,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    page_tokens: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype | None = None,
    window: int | None = None,
    capped: bool = False,
) -> None:
    q = torch.empty(seqs, heads, head_dim, dtype=dtype, device=META)
    page_table = torch.empty(seqs, 8192, dtype=torch.int32, device=META)
    kv_lens = torch.empty(seqs, dtype=torch.int32, device=META)
    layer = kv_layer(kv_dtype or dtype, kv_heads, page_tokens, head_dim)
    sinks = torch.empty(heads, device=META) if capped else None
    softcap = 50.0 if capped else None
    decode_attention(q, layer, page_table, kv_lens, head_dim**-0.5, window, softcap=softcap, sinks=sinks)


def prefill(
    query_len: int = 4096,
    seqs: int = 2,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    page_tokens: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype | None = None,
    window: int | None = None,
    capped: bool = False,
) -> None:
    q = torch.empty(query_len * seqs, heads, head_dim, dtype=dtype, device=META)
    page_table = torch.empty(seqs, 8192, dtype=torch.int32, device=META)
    query_starts = torch.empty(seqs + 1, dtype=torch.int32, device=META)
    kv_lens = torch.empty(seqs, dtype=torch.int32, device=META)
    layer = kv_layer(kv_dtype or dtype, kv_heads, page_tokens, head_dim)
    sinks = torch.empty(heads, device=META) if capped else None
    softcap = 50.0 if capped else None
    prefill_attention(q, layer, page_table, query_starts, kv_lens, head_dim**-0.5, window, softcap=softcap, sinks=sinks)


def rope(
    num_tokens: int = 64,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    page_tokens: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype | None = None,
    qk_norm: bool = False,
) -> None:
    qkv = torch.empty(num_tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype, device=META)
    cos = torch.empty(num_tokens, head_dim // 2, device=META)
    slots = torch.empty(num_tokens, dtype=torch.int64, device=META)
    gains = torch.empty(heads + kv_heads, head_dim, dtype=dtype, device=META) if qk_norm else None
    layer = kv_layer(kv_dtype or dtype, kv_heads, page_tokens, head_dim)
    rope_kv_write(qkv, cos, cos, slots, layer, heads, qk_norm=gains, eps=1e-6)


def launches() -> dict[str, Callable[[], object]]:
    fp8 = torch.float8_e4m3fn
    return {
        "rope": partial(rope),
        "rope prefill": partial(rope, num_tokens=8192),
        "rope prefill norm fp8": partial(rope, num_tokens=8192, qk_norm=True, kv_dtype=fp8),
        "rope 1B fp32": partial(rope, dtype=torch.float32, head_dim=64),
        "prefill bf16": partial(prefill),
        "prefill int8": partial(prefill, kv_dtype=torch.int8),
        "prefill window": partial(prefill, window=1024),
        "prefill capped": partial(prefill, window=1024, capped=True),
        "prefill 1B": partial(prefill, head_dim=64),
        "prefill head_dim 256": partial(prefill, heads=16, head_dim=256),
        "prefill 1B int8": partial(prefill, head_dim=64, kv_dtype=torch.int8),
        "prefill head_dim 96": partial(prefill, kv_heads=32, head_dim=96, page_tokens=64),
        "decode bf16": partial(decode),
        "decode fp8": partial(decode, kv_dtype=fp8),
        "decode 256 window": partial(decode, seqs=256, window=4096),
        "decode capped": partial(decode, window=4096, capped=True),
        "decode 1B": partial(decode, head_dim=64),
        "decode head_dim 256": partial(decode, heads=16, head_dim=256),
        "decode fp32": partial(decode, dtype=torch.float32, head_dim=32),
        "decode 24 heads fp8": partial(decode, heads=24, kv_dtype=fp8, page_tokens=32),
    }
