"""The kernel of `prefill_attention`, which says how the work is dealt out."""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream.kernels.pages.gpu.kv_layer import LOG2_E, capped, head_runs, load_page_ids, load_scales, load_tile, pick
from slipstream.kernels.quantization.gpu.fp8_codes import narrowed

LOG_2_E = tl.constexpr(LOG2_E)


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
    score_cap,
    window,
    MASKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
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
        scores = tl.dot(queries, tl.trans(narrowed(keys, queries.dtype)), input_precision="ieee")
        if QUANTIZED:
            scores *= load_scales(scales, runs, positions, present, 0, PAGE_TOKENS, HEAD_DIM)[None, :]
        if HAS_CAP:
            scores = capped(scores, score_cap)
        if MASKED:
            distance = query_positions[:, None] - positions[None, :]
            seen = distance >= 0
            if HAS_WINDOW:
                seen &= distance < window
            scores = tl.where(seen, scores, float("-inf"))

        new_top = tl.maximum(top, tl.max(scores, axis=1) * score_scale)
        origin = new_top
        if MASKED and HAS_WINDOW:
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
        sums = tl.dot(weights, narrowed(values, queries.dtype), sums * decay[:, None], input_precision="ieee")
    return top, weight_sum, sums


@triton.jit(
    do_not_specialize=["num_seqs", "window", "page_table_stride"],
    do_not_specialize_on_alignment=["page_table", "query_starts", "kv_lens"],
)
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
    score_cap,  # to base 2
    sinks,  # [heads]
    window,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
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
    if HAS_WINDOW:
        full_start = tl.cdiv(tl.maximum(last_position - window + 1, 0), BLOCK_KEYS) * BLOCK_KEYS
    for PART in tl.static_range(0 if HAS_WINDOW else 1, 3):
        if PART == 0:  # where the window begins
            start = tl.maximum(first_position - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
            stop = tl.minimum(full_start, end)
        elif PART == 1:
            start = full_start
            stop = full_end
        else:  # up to the queries themselves
            start = tl.maximum(full_start, full_end)
            stop = end
        top, weight_sum, sums = attend_blocks(
            queries,
            positions,
            top,
            weight_sum,
            sums,
            numbers,
            scales,
            page_row,
            kv_head,
            start,
            stop,
            kv_len,
            score_scale,
            score_cap / score_scale,
            window,
            MASKED=PART != 1,
            HAS_WINDOW=HAS_WINDOW,
            HAS_CAP=HAS_CAP,
            QUANTIZED=QUANTIZED,
            NUM_KV_HEADS=NUM_KV_HEADS,
            PAGE_TOKENS=PAGE_TOKENS,
            HEAD_DIM=HEAD_DIM,
            HEAD_STRIDE=HEAD_STRIDE,
            BLOCK_KEYS=BLOCK_KEYS,
            BLOCK_DIM=BLOCK_DIM,
        )
    if HAS_SINKS:
        sink = tl.load(sinks + kv_head * GROUP + rows % GROUP)
        weight_sum += tl.exp2(sink * LOG_2_E - top)
    result = (sums / weight_sum[:, None]).to(out.dtype.element_ty)
    tl.store(out + row_tokens[:, None] * out_stride + columns, result, mask=mask)
