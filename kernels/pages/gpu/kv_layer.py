"""One layer of the KV pool as kernels address it.

    plain       [pages, kv_heads, 2, page_tokens, head_dim]     the queries' dtype
    quantised   [pages, kv_heads, head_bytes]                   int8 or fp8 codes, then float32 scales (`quantized_kv`)

In both a head of a page is one run, keys before values, and a token's key is head_dim neighbours. Offsets of pages are
taken in 64 bits: a layer may be larger than 2^31 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.pages.quantized_kv import head_bytes, is_quantized, page_tokens_of

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_DIM = 256
MAX_GROUP = 32  # query heads of a KV head
LOG2_E = 1.4426950408889634  # exp(x) = exp2(x * LOG2_E), and exp2 is the one the hardware has


def room_for_seqs(num_seqs: int) -> int:
    """16, 64, 256, ...: kernels that hold a number of each sequence are compiled for few sizes of a batch."""
    room = 16
    while room < num_seqs:
        room *= 4
    return room


@dataclass(frozen=True, slots=True)
class KvLayer:
    """A layer's memory and its form."""

    numbers: Tensor  # keys and values, or their codes
    scales: Tensor  # the same memory as float32; not read where keys and values are plain
    num_kv_heads: int
    page_tokens: int
    quantized: bool

    @property
    def head_stride(self) -> int:
        """From a head of a page to the next, in numbers or codes."""
        return self.numbers.stride(1)

    @staticmethod
    def of(kv_layer: Tensor, head_dim: int, dtype: torch.dtype) -> KvLayer:
        """Raises ValueError if `kv_layer` is no layer for heads of `head_dim` numbers of `dtype`."""
        quantized = is_quantized(kv_layer)
        if dtype not in DTYPES:
            raise ValueError(f"q: {dtype} is not one of {DTYPES}")
        if not 16 <= head_dim <= MAX_HEAD_DIM or head_dim % 16:
            raise ValueError(f"head_dim {head_dim} is no multiple of 16 up to {MAX_HEAD_DIM}")
        if not quantized and kv_layer.dtype != dtype:
            raise ValueError(f"kv_layer: {kv_layer.dtype} where the queries are {dtype}")
        if kv_layer.dim() != (3 if quantized else 5):
            raise ValueError(f"kv_layer: {list(kv_layer.shape)} is no layer of {kv_layer.dtype} pages")
        page_tokens = page_tokens_of(kv_layer, head_dim)
        run = head_bytes(page_tokens, head_dim) if quantized else (2, page_tokens, head_dim)
        if tuple(kv_layer.shape[2:]) != (run if isinstance(run, tuple) else (run,)):
            raise ValueError(f"kv_layer: {list(kv_layer.shape)} does not hold heads of {head_dim} numbers")
        if not kv_layer.is_contiguous():
            raise ValueError("kv_layer: not contiguous")
        if page_tokens < 8 or page_tokens & (page_tokens - 1):
            raise ValueError(f"kv_layer: {page_tokens} tokens a page are no power of two from 8 on")
        scales = kv_layer.view(torch.float32) if quantized else kv_layer
        return KvLayer(kv_layer, scales, kv_layer.shape[1], page_tokens, quantized)

    def check_heads(self, num_heads: int) -> None:
        """Raises ValueError if `num_heads` query heads cannot attend to this layer."""
        group, rest = divmod(num_heads, self.num_kv_heads)
        if rest or not 1 <= group <= MAX_GROUP:
            raise ValueError(
                f"num_heads: {num_heads} cannot share {self.num_kv_heads} KV heads, which serve up to {MAX_GROUP} each"
            )

    def check_step(
        self,
        q: Tensor,
        out: Tensor,
        page_table: Tensor,
        kv_lens: Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> None:
        """Raises ValueError if these are no arguments of attention over this layer."""
        num_heads, head_dim = q.shape[1:]
        num_seqs = kv_lens.shape[0]
        for name, rows in (("q", q), ("out", out)):
            if rows.shape != q.shape or rows.dtype != q.dtype or rows.stride()[1:] != (head_dim, 1):
                raise ValueError(f"{name}: {rows.dtype} {list(rows.shape)} with strides {rows.stride()}")
        self.check_heads(num_heads)
        if page_table.dtype != torch.int32 or page_table.shape[:1] != (num_seqs,) or page_table.stride(-1) != 1:
            raise ValueError(f"page_table: {page_table.dtype} {list(page_table.shape)} for {num_seqs} sequences")
        if kv_lens.dtype != torch.int32 or kv_lens.dim() != 1 or not kv_lens.is_contiguous():
            raise ValueError(f"kv_lens: {kv_lens.dtype} {list(kv_lens.shape)}")
        if scale <= 0:
            raise ValueError(f"scale: {scale}")
        if window is not None and window < 1:
            raise ValueError(f"window: {window} sees nothing")
        if softcap is not None and softcap <= 0:
            raise ValueError(f"softcap: {softcap}")
        if sinks is not None and (
            sinks.dtype != torch.float32 or sinks.shape != (num_heads,) or not sinks.is_contiguous()
        ):
            raise ValueError(f"sinks: {sinks.dtype} {list(sinks.shape)} for {num_heads} heads")


@triton.jit
def pick(values, index, LENGTH: tl.constexpr):
    """`values[index]` of a tensor [LENGTH] in registers."""
    return tl.sum(tl.where(tl.arange(0, LENGTH) == index, values, 0), axis=0)


@triton.jit
def load_page_ids(page_table_row, positions, mask, PAGE_TOKENS: tl.constexpr):
    """The page of each position."""
    return tl.load(page_table_row + positions // PAGE_TOKENS, mask=mask, other=0)


@triton.jit
def head_runs(page_ids, kv_head, NUM_KV_HEADS: tl.constexpr, HEAD_STRIDE: tl.constexpr):
    """Where the head's run of each page begins, in numbers of the layer."""
    return (page_ids.to(tl.int64) * NUM_KV_HEADS + kv_head) * HEAD_STRIDE


@triton.jit
def load_tile(
    numbers,
    runs,  # [positions]
    positions,  # [positions]
    mask,  # [positions]
    VALUES: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Keys, or with VALUES values, as [positions, BLOCK_DIM]. Zeros where masked: what lies there may be nan, which a
    weight of zero would not keep out."""
    rows = runs + (VALUES * PAGE_TOKENS + positions % PAGE_TOKENS) * HEAD_DIM
    dims = tl.arange(0, BLOCK_DIM)
    inside = mask[:, None]
    if HEAD_DIM != BLOCK_DIM:
        inside = inside & (dims < HEAD_DIM)[None, :]
    return tl.load(numbers + rows[:, None] + dims[None, :], mask=inside, other=0.0)


@triton.jit
def first_scales(runs, VALUES: tl.constexpr, PAGE_TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Where the scales of keys, or with VALUES of values, begin in each run, in float32 numbers of the layer: behind
    2 * PAGE_TOKENS * HEAD_DIM bytes of codes, four bytes a scale."""
    return runs // 4 + PAGE_TOKENS * HEAD_DIM // 2 + VALUES * PAGE_TOKENS


@triton.jit
def load_scales(scales, runs, positions, mask, VALUES: tl.constexpr, PAGE_TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """[positions] in float32."""
    first = first_scales(runs, VALUES, PAGE_TOKENS, HEAD_DIM)
    return tl.load(scales + first + positions % PAGE_TOKENS, mask=mask, other=0.0)


@triton.jit
def capped(scores, cap):
    """`cap * tanh(scores / cap)`; both to base 2, or both not."""
    z = 2.0 * scores / cap
    return cap * (2.0 * tl.sigmoid(tl.where(z < -80.0, -80.0, z)) - 1.0)  # e^80 is a float32
