"""Causal attention of several queries a sequence over paged keys and values: prompts, chunks of them, cached prefixes.

A program takes a KV head and a block of one sequence's queries, and walks over the keys they see. The query heads that
share the KV head lie in one product, so a tile of keys serves all of them:

    rows of a program    | q0 h0 | q0 h1 | q0 h2 | q1 h0 | q1 h1 | q1 h2 | ...     GROUP heads a query

    keys    0 ......... full ........ end
    q0      [ 1 1 1 1 1 | 1 1 0 0 0 ]     up to `full` all queries see all keys: no mask is computed, which is most of
    q1      [ 1 1 1 1 1 | 1 1 1 0 0 ]     the work of a long prompt. With a window there is a masked part in front, too.

The programs find their sequence from `query_starts` on the device. The longest rows of the causal triangle start first,
so that the last programs to run are short ones. Keys are gathered page by page straight into shared memory.

Not yet run on a GPU: checked in Triton's interpreter and compiled for sm_90.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.kv_layer import LOG2_E, KvLayer, head_runs, load_page_ids, load_scales, load_tile, pick


@triton.jit
def attend_blocks(
    queries,  # [BLOCK_ROWS, BLOCK_DIM]
    query_positions,  # [BLOCK_ROWS]
    top,  # [BLOCK_ROWS]: maximum so far of the scores, to base 2
    weight_sum,  # [BLOCK_ROWS]
    sums,  # [BLOCK_ROWS, BLOCK_DIM]
    numbers,
    scales,
    page_row,
    kv_head,
    start,
    stop,
    kv_len,
    score_scale,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    QUANTIZED: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """(top, weight_sum, sums) after the blocks from `start` to `stop`; without MASKED, every query sees all of them."""
    ahead = start + tl.arange(0, BLOCK_KEYS)
    page_ids = load_page_ids(page_row, ahead, ahead < kv_len, PAGE_TOKENS)
    for first in range(start, stop, BLOCK_KEYS):
        positions = first + tl.arange(0, BLOCK_KEYS)
        runs = head_runs(page_ids, kv_head, NUM_KV_HEADS, HEAD_STRIDE)
        # The next block's pages are looked up while this one is read: keys never wait for two loads in a row.
        ahead = positions + BLOCK_KEYS
        page_ids = load_page_ids(page_row, ahead, ahead < kv_len, PAGE_TOKENS)
        present = tl.full([BLOCK_KEYS], True, tl.int1)
        if MASKED:
            present = positions < kv_len

        keys = load_tile(numbers, runs, positions, present, 0, PAGE_TOKENS, HEAD_DIM, BLOCK_DIM)
        scores = tl.dot(queries, tl.trans(keys.to(queries.dtype)), input_precision="ieee")
        if QUANTIZED:
            scores *= load_scales(scales, runs, positions, present, 0, PAGE_TOKENS, HEAD_DIM)[None, :]
        if MASKED:
            distance = query_positions[:, None] - positions[None, :]
            seen = distance >= 0
            if WINDOW is not None:
                seen &= distance < WINDOW
            scores = tl.where(seen, scores, float("-inf"))

        new_top = tl.maximum(top, tl.max(scores, axis=1) * score_scale)
        origin = new_top
        if MASKED and WINDOW is not None:
            # Later queries of the block may not see any key yet.
            origin = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores * score_scale - origin[:, None])  # [BLOCK_ROWS, BLOCK_KEYS]
        decay = tl.exp2(top - origin)
        weight_sum = weight_sum * decay + tl.sum(weights, axis=1)
        top = new_top
        if QUANTIZED:
            weights *= load_scales(scales, runs, positions, present, 1, PAGE_TOKENS, HEAD_DIM)[None, :]
        values = load_tile(numbers, runs, positions, present, 1, PAGE_TOKENS, HEAD_DIM, BLOCK_DIM)
        weights = weights.to(queries.dtype)
        sums = tl.dot(weights, values.to(queries.dtype), sums * decay[:, None], input_precision="ieee")
    return top, weight_sum, sums


@triton.jit(do_not_specialize=["num_seqs"])
def prefill_attention_kernel(
    q,  # [tokens, heads, HEAD_DIM]
    numbers,  # [pages, NUM_KV_HEADS, ...]
    scales,  # the same memory as float32
    page_table,  # [seqs, max_pages]
    query_starts,  # [seqs + 1]
    kv_lens,  # [seqs]
    out,  # [tokens, heads, HEAD_DIM]
    num_seqs,
    q_stride,
    page_table_stride,
    out_stride,
    score_scale,  # to base 2
    WINDOW: tl.constexpr,
    QUANTIZED: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    PAGE_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    MAX_SEQS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    BLOCK_QUERIES: tl.constexpr = BLOCK_ROWS // GROUP
    kv_head = tl.program_id(0)
    seqs = tl.arange(0, MAX_SEQS)
    starts = tl.load(query_starts + seqs, mask=seqs < num_seqs, other=0)
    query_lens = tl.load(query_starts + seqs + 1, mask=seqs < num_seqs, other=0) - starts
    num_blocks = tl.cdiv(query_lens, BLOCK_QUERIES)
    block = tl.sum(num_blocks, axis=0) - 1 - tl.program_id(1)  # from the last, which sees most keys
    if block < 0:
        return
    ends = tl.cumsum(num_blocks, axis=0)
    seq = tl.sum((ends <= block).to(tl.int32), axis=0)
    first_query = (block - pick(ends - num_blocks, seq, MAX_SEQS)) * BLOCK_QUERIES
    query_len = pick(query_lens, seq, MAX_SEQS)
    kv_len = tl.load(kv_lens + seq)
    first_position = kv_len - query_len + first_query
    last_position = tl.minimum(first_position + BLOCK_QUERIES, kv_len) - 1

    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    row_queries = rows // GROUP
    row_tokens = (pick(starts, seq, MAX_SEQS) + first_query + row_queries).to(tl.int64)
    row_mask = (row_queries < BLOCK_QUERIES) & (first_query + row_queries < query_len)
    mask = row_mask[:, None] & (dims < HEAD_DIM)[None, :]
    columns = (kv_head * GROUP + rows % GROUP)[:, None] * HEAD_DIM + dims[None, :]
    queries = tl.load(q + row_tokens[:, None] * q_stride + columns, mask=mask, other=0.0)
    positions = tl.minimum(first_position + row_queries, last_position)

    page_row = page_table + seq.to(tl.int64) * page_table_stride
    top = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_ROWS], tl.float32)
    sums = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    end = last_position + 1
    full_start = 0
    full_end = (first_position + 1) // BLOCK_KEYS * BLOCK_KEYS
    if WINDOW is not None:
        start = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
        full_start = tl.cdiv(tl.maximum(last_position - WINDOW + 1, 0), BLOCK_KEYS) * BLOCK_KEYS
        top, weight_sum, sums = attend_blocks(
            queries, positions, top, weight_sum, sums, numbers, scales, page_row, kv_head, start,
            tl.minimum(full_start, end), kv_len, score_scale, True, WINDOW, QUANTIZED, NUM_KV_HEADS, PAGE_TOKENS,
            HEAD_DIM, HEAD_STRIDE, BLOCK_KEYS, BLOCK_DIM,
        )  # fmt: skip
    top, weight_sum, sums = attend_blocks(
        queries, positions, top, weight_sum, sums, numbers, scales, page_row, kv_head, full_start, full_end, kv_len,
        score_scale, False, WINDOW, QUANTIZED, NUM_KV_HEADS, PAGE_TOKENS, HEAD_DIM, HEAD_STRIDE, BLOCK_KEYS, BLOCK_DIM,
    )  # fmt: skip
    top, weight_sum, sums = attend_blocks(
        queries, positions, top, weight_sum, sums, numbers, scales, page_row, kv_head,
        tl.maximum(full_start, full_end), end, kv_len, score_scale, True, WINDOW, QUANTIZED, NUM_KV_HEADS, PAGE_TOKENS,
        HEAD_DIM, HEAD_STRIDE, BLOCK_KEYS, BLOCK_DIM,
    )  # fmt: skip
    result = (sums / weight_sum[:, None]).to(out.dtype.element_ty)
    tl.store(out + row_tokens[:, None] * out_stride + columns, result, mask=mask)


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How one launch is cut. By reasoning and the compiler's report of resources, not yet by measurement.

    With 64 rows, reading tiles again for each block would ask more of the L2 than it gives, at the rate of the matrix
    units; with 128, two warp groups share every tile. Tiles are as wide as registers allow: of the 255 of a thread,
    sums take block_dim / 2, scores and weights together 0.75 * block_keys. Codes need some to be converted in.
    """

    block_rows: int
    block_keys: int
    num_warps: int
    num_stages: int

    @staticmethod
    def choose(head_dim: int, group: int, dtype: torch.dtype, quantized: bool) -> PrefillConfig:
        if dtype == torch.float32:  # no matrix units: for tests and comparisons
            return PrefillConfig(max(32, triton.next_power_of_2(group)), 32, 4, 2)
        if head_dim <= 64:
            return PrefillConfig(128, 64 if quantized else 128, 8, 3)
        if head_dim <= 128:
            return PrefillConfig(128, 64, 8, 2 if quantized else 3)
        return PrefillConfig(128, 32, 8, 2)


def prefill_attention(
    q: Tensor,
    kv_layer: Tensor,
    page_table: Tensor,
    query_starts: Tensor,
    kv_lens: Tensor,
    scale: float,
    window: int | None = None,
    *,
    out: Tensor | None = None,
    config: PrefillConfig | None = None,
) -> Tensor:
    """Attends the last positions of each sequence, those of its queries, to its `kv_lens` first positions, causally.

    `q` is [tokens, heads, head_dim], heads dense; the queries of sequence i are rows `query_starts[i] ..
    query_starts[i + 1]`, none or more. `kv_layer` is a layer of the pool, plain or quantised (see `KvLayer`), in which
    the keys and values of these positions are already. `page_table` [seqs, max_pages], `query_starts` [seqs + 1] and
    `kv_lens` [seqs] are int32 on the device. With a `window` a query sees itself and the `window - 1` positions before.
    Nothing behind a sequence's last position is read. Rows behind the last query are not written. Launches depend on
    shapes alone. Returns `out` [tokens, heads, head_dim]. Raises ValueError.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_seqs = kv_lens.shape[0]
    kv = KvLayer.of(kv_layer, head_dim, q.dtype)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    kv.check_step(q, out, page_table, kv_lens, scale, window)
    if query_starts.dtype != torch.int32 or query_starts.shape != (num_seqs + 1,) or not query_starts.is_contiguous():
        raise ValueError(f"query_starts: {query_starts.dtype} {list(query_starts.shape)} for {num_seqs} sequences")
    if not num_tokens or not num_seqs:
        return out
    group = num_heads // kv.num_kv_heads
    config = config or PrefillConfig.choose(head_dim, group, q.dtype, kv.quantized)
    # At most this many: every sequence may end with a block that is not full.
    num_blocks = num_tokens // (config.block_rows // group) + num_seqs
    prefill_attention_kernel[(kv.num_kv_heads, num_blocks)](
        q,
        kv.numbers,
        kv.scales,
        page_table,
        query_starts,
        kv_lens,
        out,
        num_seqs,
        q.stride(0),
        page_table.stride(0),
        out.stride(0),
        scale * LOG2_E,
        WINDOW=window,
        QUANTIZED=kv.quantized,
        NUM_KV_HEADS=kv.num_kv_heads,
        GROUP=group,
        PAGE_TOKENS=kv.page_tokens,
        HEAD_DIM=head_dim,
        HEAD_STRIDE=kv.head_stride,
        MAX_SEQS=triton.next_power_of_2(num_seqs),
        BLOCK_ROWS=config.block_rows,
        BLOCK_KEYS=config.block_keys,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out
