"""Pages of a KV pool, scattered in memory, to and from a contiguous buffer, for a range of layers and of heads.

    pool     [layers, pages, kv_heads, head run]     head run: the bytes that one head of one page takes in a layer
    buffer   [layers of the range, page ids, heads of the range, head run]

A run of heads of a page is contiguous in both, so any dtype, quantised or not, is a copy of words, and a range of heads
is all that a re-layout between tensor-parallel degrees needs: the receiver of heads 4 .. 7 reads or writes just these.
The buffer may be pinned host memory as well, read and written over the bus. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.benchmark.benchmark_case import Case, rotated

BLOCK_WORDS = 2048  # of 8 bytes, 8 loads of 16 bytes a thread of 4 warps, all before the first store
WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@triton.jit
def page_copy_kernel(
    pool,  # words
    page_ids,  # [n]
    buffer,  # words
    first_word: tl.int64,  # in the pool: of the range of layers and heads; 64 bits whatever the layer
    layer_stride,  # words of the pool, likewise the next
    page_stride,
    run_words,  # of the range of heads of one page of one layer
    TO_BUFFER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    word = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = word < run_words
    page = tl.load(page_ids + index).to(tl.int64)
    in_pool = pool + first_word + layer * layer_stride + page * page_stride + word
    in_buffer = buffer + (layer * tl.num_programs(0) + index) * run_words + word
    if TO_BUFFER:
        tl.store(in_buffer, tl.load(in_pool, mask=inside), mask=inside)
    else:
        tl.store(in_pool, tl.load(in_buffer, mask=inside), mask=inside)


def gather_pages(pool: Tensor, page_ids: Tensor, buffer: Tensor, *, layers: range, heads: range) -> None:
    """Fills `buffer` from pages `page_ids` [n] (int32 or int64, on pool's device) of `pool` [layers, pages, kv_heads,
    ...]. Both are contiguous; the buffer's shape and dtype are free, its bytes are [layers, n, heads, head run].

    Page ids are not looked at on the host: one out of range reads memory of others. Raises ValueError.
    """
    _copy(pool, page_ids, buffer, layers, heads, to_buffer=True)


def scatter_pages(pool: Tensor, page_ids: Tensor, buffer: Tensor, *, layers: range, heads: range) -> None:
    """The way back: writes `buffer` into the pages, which must be different ones. Arguments as in `gather_pages`."""
    _copy(pool, page_ids, buffer, layers, heads, to_buffer=False)


def gather_reference(pool: Tensor, page_ids: Tensor, *, layers: range, heads: range) -> Tensor:
    """What `gather_pages` leaves in the buffer: uint8 [layers, n, heads, head run]."""
    as_bytes = pool.flatten(3).view(torch.uint8)
    return as_bytes[layers.start : layers.stop, page_ids.long()][:, :, heads.start : heads.stop].contiguous()


def _copy(pool: Tensor, page_ids: Tensor, buffer: Tensor, layers: range, heads: range, *, to_buffer: bool) -> None:
    head_bytes = head_run_bytes("pool", pool)
    check_ids("page_ids", page_ids)
    if page_ids.device != pool.device:
        raise ValueError(f"page_ids must be on {pool.device}, got {page_ids.device}")
    num_layers, num_pages, num_heads = pool.shape[:3]
    check_part("layers", layers, num_layers)
    check_part("heads", heads, num_heads)
    run_bytes = len(heads) * head_bytes
    num_bytes = len(layers) * len(page_ids) * run_bytes
    if not buffer.is_contiguous() or buffer.numel() * buffer.element_size() != num_bytes:
        raise ValueError(
            f"buffer must be contiguous and hold {num_bytes} bytes, got {list(buffer.shape)} {buffer.dtype}"
        )
    if not len(page_ids):
        return
    words = widest_words(head_bytes, pool, buffer)
    word_bytes = words.itemsize
    page_words = num_heads * head_bytes // word_bytes
    grid = (len(page_ids), len(layers), triton.cdiv(run_bytes // word_bytes, BLOCK_WORDS))
    page_copy_kernel[grid](
        pool.view(-1).view(words),
        page_ids,
        buffer.view(-1).view(words),
        layers.start * num_pages * page_words + heads.start * head_bytes // word_bytes,
        num_pages * page_words,
        page_words,
        run_bytes // word_bytes,
        TO_BUFFER=to_buffer,
        BLOCK=BLOCK_WORDS,
        num_warps=4,
    )


def head_run_bytes(name: str, pool: Tensor) -> int:
    """Bytes of one head of one page in one layer. Raises ValueError if `pool` is no contiguous pool."""
    if pool.dim() < 4 or not pool.is_contiguous():
        raise ValueError(f"{name} must be contiguous [layers, pages, kv_heads, ...], got {list(pool.shape)}")
    return pool[0, 0, 0].numel() * pool.element_size()


def check_ids(name: str, ids: Tensor) -> None:
    """Raises ValueError if `ids` is not [n] integers side by side."""
    if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64) or not ids.is_contiguous():
        raise ValueError(f"{name} must be contiguous [n] int32 or int64, got {list(ids.shape)} {ids.dtype}")


def check_part(name: str, part: range, count: int) -> None:
    """Raises ValueError if `part` is not some neighbours of 0 .. `count`."""
    if part.step != 1 or not 0 <= part.start < part.stop <= count:
        raise ValueError(f"{name} must be a range within 0 .. {count}, got {part}")


def widest_words(head_bytes: int, *tensors: Tensor) -> torch.dtype:
    """The widest words that head runs are a multiple of and that lie on addresses of their size."""
    places = (head_bytes, *(tensor.data_ptr() for tensor in tensors))
    return next(words for words in WORDS if all(place % words.itemsize == 0 for place in places))


def benchmark_cases() -> tuple[Case, ...]:
    """Llama-3.1-8B in bfloat16: 4096 tokens of all heads, and of the half that a rank of two takes."""
    return tuple(
        Case(
            name=f"page_{way} bf16 256 pages x 32 layers, {num_heads} of 8 heads",
            setup=rotated(partial(_copied, way, num_heads), set_bytes=256 * 32 * 8 * 8192),
            num_bytes=2 * 256 * 32 * num_heads * 8192,
            target=0.8,
        )
        for way in ("gather", "scatter")
        for num_heads in (8, 4)
    )


def _copied(way: str, num_heads: int, device: torch.device) -> Callable[[], object]:
    pool = torch.randn(32, 512, 8, 2, 16, 128, device=device, dtype=torch.bfloat16)
    page_ids = torch.randperm(512, device=device)[:256]
    buffer = torch.randn(32, 256, num_heads, 2, 16, 128, device=device, dtype=torch.bfloat16)
    copy = gather_pages if way == "gather" else scatter_pages
    return lambda: copy(pool, page_ids, buffer, layers=range(32), heads=range(num_heads))
