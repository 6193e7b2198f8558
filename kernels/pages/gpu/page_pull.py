"""Pages from one KV pool straight into another, scattered at both ends: one pass over the bytes.

For two workers on one GPU, or on two with peer access: the source may be another process's pool, mapped here. Where
a run of heads of a page is contiguous in both pools, ranks of different tensor-parallel degree are served as well; only
`heads` and `source_heads` differ. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.benchmark.benchmark_case import Case, rotated
from slipstream.kernels.pages.gpu.page_copy import BLOCK_WORDS, check_ids, check_part, head_run_bytes, widest_words


@triton.jit
def page_pull_kernel(
    source,  # words
    source_ids,  # [n]
    pool,  # words
    page_ids,  # [n]
    source_first: tl.int64,  # word of the first layer's first head; of 64 bits whatever the layer
    source_layer_stride,
    source_page_stride,
    first: tl.int64,
    layer_stride,
    page_stride,
    run_words,  # of the heads of one page of one layer
    BLOCK: tl.constexpr,
):
    index, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    word = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = word < run_words
    source_page = tl.load(source_ids + index).to(tl.int64)
    page = tl.load(page_ids + index).to(tl.int64)
    found = tl.load(
        source + source_first + layer * source_layer_stride + source_page * source_page_stride + word, mask=inside
    )
    tl.store(pool + first + layer * layer_stride + page * page_stride + word, found, mask=inside)


def pull_pages(
    source: Tensor,
    source_ids: Tensor,
    pool: Tensor,
    page_ids: Tensor,
    *,
    layers: range,
    source_heads: range,
    heads: range,
) -> None:
    """Copies `source_heads` of pages `source_ids` of `source` to `heads` of pages `page_ids` of `pool`, in `layers`.

    Both pools are contiguous [layers, pages, kv_heads, ...] of one dtype; ids are [n] int32 or int64 on the device,
    those written all different. They are not looked at on the host: one out of range reads or writes memory of others.
    Raises ValueError.
    """
    source_bytes, head_bytes = head_run_bytes("source", source), head_run_bytes("pool", pool)
    if source_bytes != head_bytes or source.shape[0] != pool.shape[0]:
        raise ValueError(
            f"source has {source.shape[0]} layers and heads of {source_bytes} bytes, "
            f"pool {pool.shape[0]} and {head_bytes}"
        )
    if len(source_heads) != len(heads) or len(source_ids) != len(page_ids):
        raise ValueError(f"source_heads, heads: {source_heads}, {heads}; {len(source_ids)} and {len(page_ids)} ids")
    check_ids("source_ids", source_ids)
    check_ids("page_ids", page_ids)
    check_part("layers", layers, pool.shape[0])
    check_part("source_heads", source_heads, source.shape[2])
    check_part("heads", heads, pool.shape[2])
    if not len(page_ids):
        return
    words = widest_words(head_bytes, source, pool)
    head_words = head_bytes // words.itemsize
    strides = []
    for tensor, part in ((source, source_heads), (pool, heads)):
        page_words = tensor.shape[2] * head_words
        layer_words = tensor.shape[1] * page_words
        strides += [layers.start * layer_words + part.start * head_words, layer_words, page_words]
    run_words = len(heads) * head_words
    page_pull_kernel[(len(page_ids), len(layers), triton.cdiv(run_words, BLOCK_WORDS))](
        source.view(-1).view(words),
        source_ids,
        pool.view(-1).view(words),
        page_ids,
        *strides,
        run_words,
        BLOCK=BLOCK_WORDS,
        num_warps=4,
    )


def benchmark_cases() -> tuple[Case, ...]:
    """Llama-3.1-8B in bfloat16: 4096 tokens of all heads."""
    num_bytes = 256 * 32 * 8 * 8192
    return (
        Case(
            name="page_pull bf16 256 pages x 32 layers",
            setup=rotated(_pulled, set_bytes=2 * num_bytes),
            num_bytes=2 * num_bytes,
            target=0.8,
        ),
    )


def _pulled(device: torch.device) -> Callable[[], object]:
    source, pool = (torch.randn(32, 512, 8, 2, 16, 128, device=device, dtype=torch.bfloat16) for _ in range(2))
    source_ids, page_ids = (torch.randperm(512, device=device)[:256] for _ in range(2))
    everything = {"layers": range(32), "source_heads": range(8), "heads": range(8)}
    return partial(pull_pages, source, source_ids, pool, page_ids, **everything)
