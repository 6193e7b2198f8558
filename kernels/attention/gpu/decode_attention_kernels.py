"""The two kernels of `decode_attention`, which says how the work is dealt out."""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream.kernels.pages.gpu.kv_layer import LOG2_E, capped, head_runs, load_page_ids, load_scales, load_tile, pick
from slipstream.kernels.quantization.gpu.fp8_codes import narrowed

LOG_2_E = tl.constexpr(LOG2_E)


@triton.jit
def key_blocks(kv_lens, num_seqs, window, HAS_WINDOW: tl.constexpr, BLOCK_KEYS: tl.constexpr, MAX_SEQS: tl.constexpr):
    """(first block, number of blocks) that hold each sequence's visible keys: [MAX_SEQS] each."""
    seqs = tl.arange(0, MAX_SEQS)
    lens = tl.load(kv_lens + seqs, mask=seqs < num_seqs, other=0)
    first = tl.zeros_like(lens)
    if HAS_WINDOW:
        first = tl.maximum(lens - window, 0) // BLOCK_KEYS
    return first, tl.cdiv(lens, BLOCK_KEYS) - first


@triton.jit(
    do_not_specialize=["num_seqs", "window", "page_table_stride"],
    do_not_specialize_on_alignment=["page_table", "kv_lens"],
)
def decode_attention_kernel(
    q,  # [seqs, heads, HEAD_DIM]
    numbers,  # [pages, NUM_KV_HEADS, ...]
    scales,  # the same memory as float32
    page_table,  # [seqs, max_pages]
    kv_lens,  # [seqs]
    out,  # [seqs, heads, HEAD_DIM]
    parts,  # [programs, 2, GROUP, HEAD_DIM]: sums of exp2(score - max) * value
    part_stats,  # [programs, 2, 2, GROUP]: maxima, sums of exp2(score - max)
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
    BLOCK_GROUP: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    first_blocks, num_blocks = key_blocks(kv_lens, num_seqs, window, HAS_WINDOW, BLOCK_KEYS, MAX_SEQS)
    ends = tl.cumsum(num_blocks, axis=0) * NUM_KV_HEADS  # of the sequences, among the blocks of all pairs
    total = tl.sum(num_blocks, axis=0) * NUM_KV_HEADS
    run = tl.cdiv(total, tl.num_programs(0))
    run_start = tl.program_id(0) * run
    run_end = tl.minimum(run_start + run, total)

    heads = tl.arange(0, BLOCK_GROUP)
    dims = tl.arange(0, BLOCK_DIM)
    group_mask = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    group_offsets = heads[:, None] * HEAD_DIM + dims[None, :]

    at = run_start
    while at < run_end:
        seq = tl.sum((ends <= at).to(tl.int32), axis=0)
        pair_blocks = pick(num_blocks, seq, MAX_SEQS)
        in_seq = at - (pick(ends, seq, MAX_SEQS) - pair_blocks * NUM_KV_HEADS)
        kv_head = in_seq // pair_blocks
        skipped = in_seq % pair_blocks  # blocks of this pair that earlier programs take
        taken = tl.minimum(pair_blocks - skipped, run_end - at)
        kv_len = tl.load(kv_lens + seq)
        first_key = 0
        if HAS_WINDOW:
            first_key = tl.maximum(kv_len - window, 0)

        group_row = seq.to(tl.int64) * q_stride + kv_head * GROUP * HEAD_DIM
        queries = tl.load(q + group_row + group_offsets, mask=group_mask, other=0.0)  # [BLOCK_GROUP, BLOCK_DIM]
        page_row = page_table + seq.to(tl.int64) * page_table_stride
        top = tl.full([BLOCK_GROUP], float("-inf"), tl.float32)
        weight_sum = tl.zeros([BLOCK_GROUP], tl.float32)
        sums = tl.zeros([BLOCK_GROUP, BLOCK_DIM], tl.float32)

        start = (pick(first_blocks, seq, MAX_SEQS) + skipped) * BLOCK_KEYS
        positions = start + tl.arange(0, BLOCK_KEYS)
        page_ids = load_page_ids(page_row, positions, positions < kv_len, PAGE_TOKENS)
        for first in range(start, start + taken * BLOCK_KEYS, BLOCK_KEYS):
            positions = first + tl.arange(0, BLOCK_KEYS)
            visible = (positions >= first_key) & (positions < kv_len)
            runs = head_runs(page_ids, kv_head, NUM_KV_HEADS, HEAD_STRIDE)
            # The next block's pages are looked up while this one is read: keys never wait for two loads in a row.
            ahead = positions + BLOCK_KEYS
            page_ids = load_page_ids(page_row, ahead, ahead < kv_len, PAGE_TOKENS)

            keys = load_tile(numbers, runs, positions, visible, 0, PAGE_TOKENS, HEAD_DIM, BLOCK_DIM)
            scores = tl.dot(queries, tl.trans(narrowed(keys, queries.dtype)), input_precision="ieee") * score_scale
            if QUANTIZED:
                scores *= load_scales(scales, runs, positions, visible, 0, PAGE_TOKENS, HEAD_DIM)[None, :]
            if HAS_CAP:
                scores = capped(scores, score_cap)
            scores = tl.where(visible[None, :], scores, float("-inf"))

            # Every block has a visible key, so the maximum is a number from the first one on.
            new_top = tl.maximum(top, tl.max(scores, axis=1))
            weights = tl.exp2(scores - new_top[:, None])  # [BLOCK_GROUP, BLOCK_KEYS]
            decay = tl.exp2(top - new_top)
            weight_sum = weight_sum * decay + tl.sum(weights, axis=1)
            top = new_top
            if QUANTIZED:
                weights *= load_scales(scales, runs, positions, visible, 1, PAGE_TOKENS, HEAD_DIM)[None, :]
            values = load_tile(numbers, runs, positions, visible, 1, PAGE_TOKENS, HEAD_DIM, BLOCK_DIM)
            weights = weights.to(queries.dtype)
            sums = tl.dot(weights, narrowed(values, queries.dtype), sums * decay[:, None], input_precision="ieee")

        if taken == pair_blocks:
            out_row = seq.to(tl.int64) * out_stride + kv_head * GROUP * HEAD_DIM
            if HAS_SINKS:
                sink = tl.load(sinks + kv_head * GROUP + heads, mask=heads < GROUP, other=0.0)
                weight_sum += tl.exp2(sink * LOG_2_E - top)
            result = (sums / weight_sum[:, None]).to(out.dtype.element_ty)
            tl.store(out + out_row + group_offsets, result, mask=group_mask)
        else:
            # Only the first and the last pair of a run can be cut.
            part = tl.program_id(0) * 2 + (at > run_start).to(tl.int32)
            tl.store(parts + part * GROUP * HEAD_DIM + group_offsets, sums, mask=group_mask)
            stats = part_stats + part * 2 * GROUP + heads
            tl.store(stats, top, mask=heads < GROUP)
            tl.store(stats + GROUP, weight_sum, mask=heads < GROUP)
        at += taken


@triton.jit(do_not_specialize=["num_seqs", "window", "num_programs"], do_not_specialize_on_alignment=["kv_lens"])
def combine_kernel(
    kv_lens,  # [seqs]
    parts,
    part_stats,
    out,  # [seqs, heads, HEAD_DIM]
    num_seqs,
    num_programs,
    out_stride,
    sinks,  # [heads]
    window,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MAX_SEQS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Program (seq, head) adds up the parts of a head whose blocks were cut, and writes zeros for a length of 0."""
    seq, head = tl.program_id(0), tl.program_id(1)
    dims = tl.arange(0, BLOCK_DIM)
    out_row = out + seq.to(tl.int64) * out_stride + head * HEAD_DIM
    _, num_blocks = key_blocks(kv_lens, num_seqs, window, HAS_WINDOW, BLOCK_KEYS, MAX_SEQS)
    pair_blocks = pick(num_blocks, seq, MAX_SEQS)
    if pair_blocks == 0:
        tl.store(out_row + dims, tl.zeros([BLOCK_DIM], out.dtype.element_ty), mask=dims < HEAD_DIM)
    else:
        run = tl.cdiv(tl.sum(num_blocks, axis=0) * NUM_KV_HEADS, num_programs)
        before = tl.sum(tl.where(tl.arange(0, MAX_SEQS) < seq, num_blocks, 0), axis=0)
        pair_start = before * NUM_KV_HEADS + (head // GROUP) * pair_blocks
        first = pair_start // run
        last = (pair_start + pair_blocks - 1) // run
        if first < last:
            top = tl.full([1], float("-inf"), tl.float32)
            weight_sum = tl.zeros([1], tl.float32)
            sums = tl.zeros([BLOCK_DIM], tl.float32)
            for start in range(first, last + 1, BLOCK_PARTS):
                programs = start + tl.arange(0, BLOCK_PARTS)
                mask = programs <= last
                # A pair is the last of the program in which it begins, unless it begins with it; then it is the first.
                part = programs * 2 + ((programs == first) & (pair_start > first * run)).to(tl.int32)
                stats = part_stats + part * 2 * GROUP + head % GROUP
                tops = tl.load(stats, mask=mask, other=float("-inf"))
                weight_sums = tl.load(stats + GROUP, mask=mask, other=0.0)
                rows = (part * GROUP + head % GROUP) * HEAD_DIM
                inside = mask[:, None] & (dims < HEAD_DIM)[None, :]
                part_sums = tl.load(parts + rows[:, None] + dims[None, :], mask=inside, other=0.0)

                new_top = tl.maximum(top, tl.max(tops, axis=0))
                factors = tl.exp2(tops - new_top)  # [BLOCK_PARTS]
                decay = tl.exp2(top - new_top)
                weight_sum = weight_sum * decay + tl.sum(weight_sums * factors, axis=0)
                sums = sums * decay + tl.sum(part_sums * factors[:, None], axis=0)
                top = new_top
            if HAS_SINKS:
                weight_sum += tl.exp2(tl.load(sinks + head) * LOG_2_E - top)
            tl.store(out_row + dims, (sums / weight_sum).to(out.dtype.element_ty), mask=dims < HEAD_DIM)
