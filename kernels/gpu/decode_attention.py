"""Attention of one query a sequence over paged keys and values (flash-decoding), for any mix of lengths.

Decoding reads every key and value once and does next to nothing with them, so all that matters is that all
multiprocessors read all the time. The key blocks of all (sequence, KV head) pairs are laid end to end and dealt out in
equal runs, one to each program of a fixed grid:

    pairs      | s0 h0 . . | s0 h1 . . | s1 h0 . . . . . . . . . . . . | s1 h1 . . . . . .        . = a block of keys
    programs   |     0     .     |     1           |     2           |     3

Nobody waits for the longest sequence, and the host need not know the lengths: every program finds its run from
`kv_lens` on the device, so a captured CUDA graph serves any lengths. A pair within one program's run is finished there;
the parts of the others go through a small workspace to `combine_kernel`, which adds them up by their maxima. Where a
pair is cut depends on the batch, so the last bits of a result do, too; the same batch gives the same bits.

The query heads that share a KV head are the rows of one product, padded to the 16 that matrix units take.

Not yet run on a GPU: checked in Triton's interpreter and compiled for sm_90.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.kv_layer import LOG2_E, KvLayer, head_runs, load_page_ids, load_scales, load_tile, pick


@triton.jit
def key_blocks(kv_lens, num_seqs, WINDOW: tl.constexpr, BLOCK_KEYS: tl.constexpr, MAX_SEQS: tl.constexpr):
    """(first block, number of blocks) that hold each sequence's visible keys: [MAX_SEQS] each."""
    seqs = tl.arange(0, MAX_SEQS)
    lens = tl.load(kv_lens + seqs, mask=seqs < num_seqs, other=0)
    first = tl.zeros_like(lens)
    if WINDOW is not None:
        first = tl.maximum(lens - WINDOW, 0) // BLOCK_KEYS
    return first, tl.cdiv(lens, BLOCK_KEYS) - first


@triton.jit(do_not_specialize=["num_seqs"])
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
    WINDOW: tl.constexpr,
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
    first_blocks, num_blocks = key_blocks(kv_lens, num_seqs, WINDOW, BLOCK_KEYS, MAX_SEQS)
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
        if WINDOW is not None:
            first_key = tl.maximum(kv_len - WINDOW, 0)

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
            scores = tl.dot(queries, tl.trans(keys.to(queries.dtype)), input_precision="ieee") * score_scale
            if QUANTIZED:
                scores *= load_scales(scales, runs, positions, visible, 0, PAGE_TOKENS, HEAD_DIM)[None, :]
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
            sums = tl.dot(weights, values.to(queries.dtype), sums * decay[:, None], input_precision="ieee")

        if taken == pair_blocks:
            out_row = seq.to(tl.int64) * out_stride + kv_head * GROUP * HEAD_DIM
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


@triton.jit(do_not_specialize=["num_seqs"])
def combine_kernel(
    kv_lens,  # [seqs]
    parts,
    part_stats,
    out,  # [seqs, heads, HEAD_DIM]
    num_seqs,
    num_programs,
    out_stride,
    WINDOW: tl.constexpr,
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
    _, num_blocks = key_blocks(kv_lens, num_seqs, WINDOW, BLOCK_KEYS, MAX_SEQS)
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
            tl.store(out_row + dims, (sums / weight_sum).to(out.dtype.element_ty), mask=dims < HEAD_DIM)


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How one launch is cut. By reasoning and the compiler's report of resources, not yet by measurement.

    A multiprocessor of an H200 can read 34 bytes a nanosecond and waits about a microsecond for them under load, so
    some 40 KB must be on their way at all times. A tile of keys or of values is 16 KB. With four stages two to three of
    each are on their way while one is worked on, in about 105 KB of shared memory, so that a multiprocessor holds two
    programs: enough on their way also while one of the two begins or ends a pair.
    """

    block_keys: int
    num_warps: int = 4
    num_stages: int = 4
    programs_per_multiprocessor: int = 2

    @staticmethod
    def choose(head_dim: int, item_bytes: int) -> DecodeConfig:
        tile_keys = 16384 // (triton.next_power_of_2(head_dim) * item_bytes)
        return DecodeConfig(block_keys=min(max(tile_keys, 16), 128))


def decode_attention(
    q: Tensor,
    kv_layer: Tensor,
    page_table: Tensor,
    kv_lens: Tensor,
    scale: float,
    window: int | None = None,
    *,
    out: Tensor | None = None,
    config: DecodeConfig | None = None,
    num_programs: int | None = None,
) -> Tensor:
    """Attends the last position of each sequence to its `kv_lens` first positions.

    `q` is [seqs, heads, head_dim], heads dense; `kv_layer` a layer of the pool, plain or quantised (see `KvLayer`);
    `page_table` [seqs, max_pages] and `kv_lens` [seqs] are int32 on the device. With a `window` only the last `window`
    positions are seen. A length of 0 gives zeros. Nothing behind a sequence's last position is read. Capturable in a
    CUDA graph: launches depend on shapes alone. Returns `out` [seqs, heads, head_dim]. Raises ValueError.
    """
    num_seqs, num_heads, head_dim = q.shape
    kv = KvLayer.of(kv_layer, head_dim, q.dtype)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if kv_lens.shape != (num_seqs,):
        raise ValueError(f"kv_lens: {list(kv_lens.shape)} for {num_seqs} queries")
    kv.check_step(q, out, page_table, kv_lens, scale, window)
    if not num_seqs:
        return out
    config = config or DecodeConfig.choose(head_dim, kv.numbers.element_size())
    programs = num_programs or num_multiprocessors(q.device) * config.programs_per_multiprocessor
    group = num_heads // kv.num_kv_heads
    parts = torch.empty((programs, 2, group, head_dim), dtype=torch.float32, device=q.device)
    part_stats = torch.empty((programs, 2, 2, group), dtype=torch.float32, device=q.device)
    max_seqs = triton.next_power_of_2(num_seqs)
    block_dim = triton.next_power_of_2(head_dim)
    decode_attention_kernel[(programs,)](
        q,
        kv.numbers,
        kv.scales,
        page_table,
        kv_lens,
        out,
        parts,
        part_stats,
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
        MAX_SEQS=max_seqs,
        BLOCK_GROUP=max(16, triton.next_power_of_2(group)),
        BLOCK_KEYS=config.block_keys,
        BLOCK_DIM=block_dim,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    combine_kernel[(num_seqs, num_heads)](
        kv_lens,
        parts,
        part_stats,
        out,
        num_seqs,
        programs,
        out.stride(0),
        WINDOW=window,
        NUM_KV_HEADS=kv.num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        MAX_SEQS=max_seqs,
        BLOCK_KEYS=config.block_keys,
        BLOCK_PARTS=16,
        BLOCK_DIM=block_dim,
        num_warps=4,
    )
    return out


@lru_cache
def num_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 2  # interpreted: enough for pairs to be cut
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
