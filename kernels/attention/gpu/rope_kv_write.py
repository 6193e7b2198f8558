"""From the product with the qkv weights to rotated queries and to keys and values in their pages, in one pass.

    qkv [tokens, heads + 2 * kv_heads, head_dim]
      queries   norm of each head (Qwen3) -> rotation -> q, contiguous
      keys      norm of each head (Qwen3) -> rotation -> codes where the pool is quantised -> page
      values                                             codes where the pool is quantised -> page

Everything is read and written once: tokens * (heads + 2 * kv_heads) * head_dim numbers each way. The arithmetic is
float32 and rounded once, at the end. A negative slot marks a token that pads the batch: its queries are rotated, its
keys and values go nowhere.

Not yet run on a GPU: checked in Triton's interpreter and compiled for sm_90.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.benchmark.benchmark_case import Case, rotated
from slipstream.kernels.benchmark.random_pages import kv_bytes, random_pages
from slipstream.kernels.pages.gpu.kv_layer import KvLayer, first_scales
from slipstream.kernels.pages.quantized_kv import LARGEST_CODE, SMALLEST_MAGNITUDE

TILE = 2048  # numbers of queries that a program rotates, if there are so many: 16 a thread of 4 warps
ROUND = tl.constexpr(1.5 * 2**23)  # added and taken away again, rounds a float32 below 2^22 to the nearest even integer
SMALLEST = tl.constexpr(SMALLEST_MAGNITUDE)


@triton.jit
def norm_and_rotate(low, high, low_gain, high_gain, cos, sin, eps, HAS_NORM: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Both halves of heads, [rows, half] in float32."""
    if HAS_NORM:
        mean = (tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / HEAD_DIM
        inverse = tl.rsqrt(mean + eps)[:, None]
        low = low * inverse * low_gain
        high = high * inverse * high_gain
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def store_in_page(
    numbers,
    scales,
    low,  # [tokens, half]
    high,  # [tokens, half]
    runs,  # [tokens]: where the head's run of the token's page begins, in numbers
    offsets,  # [tokens]: in the page
    mask,  # [tokens, half]
    token_mask,  # [tokens]
    VALUES: tl.constexpr,
    LARGEST: tl.constexpr,  # code; 0 where keys and values are plain
    PAGE_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    if LARGEST > 0:
        magnitude = tl.maximum(tl.max(tl.abs(low), axis=1), tl.max(tl.abs(high), axis=1))
        scale = tl.div_rn(tl.maximum(magnitude, SMALLEST), LARGEST)
        first = first_scales(runs, VALUES, PAGE_TOKENS, HEAD_DIM)
        tl.store(scales + first + offsets, scale, mask=token_mask)
        low = to_codes(low, scale[:, None], LARGEST)
        high = to_codes(high, scale[:, None], LARGEST)
    columns = tl.arange(0, BLOCK_HALF)[None, :]
    rows = numbers + (runs + (VALUES * PAGE_TOKENS + offsets) * HEAD_DIM)[:, None]
    tl.store(rows + columns, low.to(numbers.dtype.element_ty), mask=mask)
    tl.store(rows + columns + HEAD_DIM // 2, high.to(numbers.dtype.element_ty), mask=mask)


@triton.jit
def to_codes(x, scale, LARGEST: tl.constexpr):
    codes = tl.div_rn(x, tl.broadcast_to(scale, x.shape))
    if LARGEST == 127:
        codes = codes + ROUND - ROUND
    return tl.clamp(codes, -LARGEST, LARGEST)


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["slots"])
def rope_kv_write_kernel(
    qkv,  # [tokens, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM]
    cos,  # [tokens, HEAD_DIM / 2]
    sin,  # [tokens, HEAD_DIM / 2]
    slots,  # [tokens]
    gains,  # [NUM_HEADS + NUM_KV_HEADS, HEAD_DIM], read with HAS_NORM
    q,  # [tokens, NUM_HEADS, HEAD_DIM]
    numbers,  # [pages, NUM_KV_HEADS, ...]
    scales,  # the same memory as float32
    num_tokens,
    qkv_stride,
    eps,
    HAS_NORM: tl.constexpr,
    LARGEST: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Program (tokens, KV head) takes the query heads that share the KV head, its keys and its values."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    HALF: tl.constexpr = HEAD_DIM // 2
    kv_head = tl.program_id(1)
    columns = tl.arange(0, BLOCK_HALF)[None, :]
    in_half = columns < HALF

    rows = tl.arange(0, BLOCK_TOKENS * BLOCK_GROUP)  # (token, head)
    tokens = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + rows // BLOCK_GROUP
    group_heads = rows % BLOCK_GROUP
    mask = ((tokens < num_tokens) & (group_heads < GROUP))[:, None] & in_half
    heads = (kv_head * GROUP + group_heads)[:, None] * HEAD_DIM + columns
    angles = tokens[:, None] * HALF + columns
    source = qkv + tokens[:, None] * qkv_stride + heads
    low = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    low_gain, high_gain = low, high
    if HAS_NORM:
        low_gain = tl.load(gains + heads, mask=mask, other=0.0).to(tl.float32)
        high_gain = tl.load(gains + heads + HALF, mask=mask, other=0.0).to(tl.float32)
    row_cos = tl.load(cos + angles, mask=mask, other=0.0)
    row_sin = tl.load(sin + angles, mask=mask, other=0.0)
    low, high = norm_and_rotate(low, high, low_gain, high_gain, row_cos, row_sin, eps, HAS_NORM, HEAD_DIM)
    target = q + tokens[:, None] * (NUM_HEADS * HEAD_DIM) + heads
    tl.store(target, low.to(q.dtype.element_ty), mask=mask)
    tl.store(target + HALF, high.to(q.dtype.element_ty), mask=mask)

    tokens = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    slot = tl.load(slots + tokens, mask=tokens < num_tokens, other=-1).to(tl.int64)
    token_mask = slot >= 0
    mask = token_mask[:, None] & in_half
    runs = (slot // PAGE_TOKENS * NUM_KV_HEADS + kv_head) * HEAD_STRIDE
    offsets = slot % PAGE_TOKENS
    angles = tokens[:, None] * HALF + columns
    head = (NUM_HEADS + kv_head) * HEAD_DIM + columns
    source = qkv + tokens[:, None] * qkv_stride + head
    low = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    value_low = tl.load(source + NUM_KV_HEADS * HEAD_DIM, mask=mask, other=0.0).to(tl.float32)
    value_high = tl.load(source + NUM_KV_HEADS * HEAD_DIM + HALF, mask=mask, other=0.0).to(tl.float32)
    low_gain, high_gain = low, high
    if HAS_NORM:
        low_gain = tl.load(gains + head, mask=in_half, other=0.0).to(tl.float32)
        high_gain = tl.load(gains + head + HALF, mask=in_half, other=0.0).to(tl.float32)
    row_cos = tl.load(cos + angles, mask=mask, other=0.0)
    row_sin = tl.load(sin + angles, mask=mask, other=0.0)
    low, high = norm_and_rotate(low, high, low_gain, high_gain, row_cos, row_sin, eps, HAS_NORM, HEAD_DIM)
    store_in_page(
        numbers, scales, low, high, runs, offsets, mask, token_mask, 0, LARGEST, PAGE_TOKENS, HEAD_DIM, BLOCK_HALF
    )
    store_in_page(
        numbers, scales, value_low, value_high, runs, offsets, mask, token_mask, 1, LARGEST, PAGE_TOKENS, HEAD_DIM,
        BLOCK_HALF,
    )  # fmt: skip


def rope_table(positions: Tensor, inv_freq: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """(cos, sin) of a step's positions [tokens], for all layers: [tokens, head_dim / 2] in float32, times `scale`."""
    angles = positions.to(torch.float32)[:, None] * inv_freq
    return angles.cos() * scale, angles.sin() * scale


def rope_kv_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    kv_layer: Tensor,
    num_heads: int,
    *,
    qk_norm: Tensor | None = None,
    eps: float = 0.0,
    q: Tensor | None = None,
) -> Tensor:
    """Rotates the queries and keys of `qkv`, and stores keys and values at `slots` of a layer's pages.

    `qkv` is [tokens, (heads + 2 * kv_heads) * head_dim] with dense rows: query heads, key heads, value heads. `cos` and
    `sin` come from `rope_table`; a head's first half turns with its second. `slots` [tokens], int32 or int64, are
    page * page_tokens + offset; negative ones are skipped. `kv_layer` is a layer of the pool, plain or quantised (see
    `KvLayer`). `qk_norm` [heads + kv_heads, head_dim] are the gains of a norm of each head before the rotation.
    Capturable in a CUDA graph. Returns `q` [tokens, heads, head_dim]. Raises ValueError.
    """
    num_tokens, half = cos.shape
    head_dim = 2 * half
    kv = KvLayer.of(kv_layer, head_dim, qkv.dtype)
    columns = (num_heads + 2 * kv.num_kv_heads) * head_dim
    if qkv.shape != (num_tokens, columns) or qkv.stride(1) != 1:
        raise ValueError(f"qkv: {list(qkv.shape)} with strides {qkv.stride()}, not [{num_tokens}, {columns}]")
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dtype != torch.float32 or table.shape != cos.shape or not table.is_contiguous():
            raise ValueError(f"{name}: {table.dtype} {list(table.shape)} with strides {table.stride()}")
    if slots.dtype not in (torch.int32, torch.int64) or slots.shape != (num_tokens,) or not slots.is_contiguous():
        raise ValueError(f"slots: {slots.dtype} {list(slots.shape)} for {num_tokens} tokens")
    kv.check_heads(num_heads)
    gains_shape = (num_heads + kv.num_kv_heads, head_dim)
    if qk_norm is not None and (qk_norm.shape != gains_shape or not qk_norm.is_contiguous()):
        raise ValueError(f"qk_norm: {list(qk_norm.shape)}, not {list(gains_shape)}")
    q = torch.empty((num_tokens, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device) if q is None else q
    if q.shape != (num_tokens, num_heads, head_dim) or q.dtype != qkv.dtype or not q.is_contiguous():
        raise ValueError(f"q: {q.dtype} {list(q.shape)} with strides {q.stride()}")
    if not num_tokens:
        return q
    block_group = triton.next_power_of_2(num_heads // kv.num_kv_heads)
    block_half = triton.next_power_of_2(half)
    # A step of few tokens is spread over many programs, a long one saves on them.
    block_tokens = max(1, TILE // (block_group * block_half * 2)) if num_tokens > 512 else 1
    rope_kv_write_kernel[(triton.cdiv(num_tokens, block_tokens), kv.num_kv_heads)](
        qkv,
        cos,
        sin,
        slots,
        qkv if qk_norm is None else qk_norm,
        q,
        kv.numbers,
        kv.scales,
        num_tokens,
        qkv.stride(0),
        eps,
        HAS_NORM=qk_norm is not None,
        LARGEST=LARGEST_CODE.get(kv_layer.dtype, 0.0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=kv.num_kv_heads,
        PAGE_TOKENS=kv.page_tokens,
        HEAD_DIM=head_dim,
        HEAD_STRIDE=kv.head_stride,
        BLOCK_TOKENS=block_tokens,
        BLOCK_GROUP=block_group,
        BLOCK_HALF=block_half,
        num_warps=4 if block_tokens > 1 else 1,
    )
    return q


def benchmark_cases() -> tuple[Case, ...]:
    """One layer of Llama-3.1-8B (32 heads, 8 KV heads of 128): a decode batch, a matter of latency, and a prompt."""
    return tuple(
        _case(name, num_tokens, kv_dtype, target)
        for name, kv_dtype in (("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn), ("int8", torch.int8))
        for num_tokens, target in ((64, None), (8192, 0.7))
    )


def _case(name: str, num_tokens: int, kv_dtype: torch.dtype, target: float | None) -> Case:
    num_bytes = num_tokens * ((48 + 32) * 128 * 2 + kv_bytes(8, 128, kv_dtype) + 128 * 4 + 8)
    return Case(
        name=f"rope_kv_write {name} {num_tokens}",
        setup=rotated(partial(_call, num_tokens, kv_dtype), num_bytes),
        num_bytes=num_bytes,
        target=target,
    )


def _call(num_tokens: int, kv_dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    layer, _, _ = random_pages([num_tokens], 8, 128, 16, kv_dtype, device)
    qkv = torch.randn(num_tokens, 48 * 128, dtype=torch.bfloat16, device=device)
    positions = torch.arange(num_tokens, device=device)
    cos, sin = rope_table(positions, torch.rand(64, device=device), 1.0)
    return lambda: rope_kv_write(qkv, cos, sin, positions, layer, 32)
