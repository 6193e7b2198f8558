"""Attention of one query a sequence over paged keys and values (flash-decoding), for any mix of lengths.

Decoding reads every key and value once and does next to nothing with them, so all that matters is that all
multiprocessors read all the time. The key blocks of all (sequence, KV head) pairs are laid end to end and dealt out in
equal runs, one to each program of a fixed grid:

    pairs      | s0 h0 . . | s0 h1 . . | s1 h0 . . . . . . . . . . . . | s1 h1 . . . . . .        . = a block of keys
    programs   |     0     .     |     1           |     2           |     3

No program waits for the longest sequence, and the host need not know the lengths: every program finds its run from
`kv_lens` on the device, so a captured CUDA graph serves any lengths. A pair within one program's run is finished there;
the parts of the others go through a small workspace to `combine_kernel`, which adds them up by their maxima. Where a
pair is cut depends on the batch, so the last bits of a result do, too; the same batch gives the same bits.

The query heads that share a KV head are the rows of one product, padded to the 16 that matrix units take.

Not yet run on a GPU: checked in Triton's interpreter and compiled for sm_90.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import triton
from torch import Tensor

from slipstream.kernels.attention.gpu.decode_attention_kernels import combine_kernel, decode_attention_kernel
from slipstream.kernels.benchmark.benchmark_case import Case, rotated
from slipstream.kernels.benchmark.random_pages import kv_bytes, random_pages
from slipstream.kernels.pages.gpu.kv_layer import LOG2_E, KvLayer, room_for_seqs


@dataclass(frozen=True, slots=True)
class DecodeAttentionConfig:
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
    def choose(head_dim: int, item_bytes: int) -> DecodeAttentionConfig:
        tile_keys = 16384 // (triton.next_power_of_2(head_dim) * item_bytes)
        return DecodeAttentionConfig(block_keys=min(max(tile_keys, 16), 128))


def decode_attention(
    q: Tensor,
    kv_layer: Tensor,
    page_table: Tensor,
    kv_lens: Tensor,
    scale: float,
    window: int | None = None,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    config: DecodeAttentionConfig | None = None,
    num_programs: int | None = None,
) -> Tensor:
    """Attends the last position of each sequence to its `kv_lens` first positions.

    `q` is [seqs, heads, head_dim], heads dense; `kv_layer` a layer of the pool, plain or quantised (see `KvLayer`);
    `page_table` [seqs, max_pages] and `kv_lens` [seqs] are int32 on the device. With a `window` only the last `window`
    positions are seen. With a `softcap` scores are softcap * tanh(score / softcap). `sinks` [heads] float32 are the
    scores of one more key of each head, whose value is zero. A length of 0 gives zeros. Nothing behind a sequence's
    last position is read. Capturable in a CUDA graph: launches depend on shapes alone. Returns `out` [seqs, heads,
    head_dim]. Raises ValueError.
    """
    num_seqs, num_heads, head_dim = q.shape
    kv = KvLayer.of(kv_layer, head_dim, q.dtype)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if kv_lens.shape != (num_seqs,):
        raise ValueError(f"kv_lens: {list(kv_lens.shape)} for {num_seqs} queries")
    kv.check_step(q, out, page_table, kv_lens, scale, window, softcap, sinks)
    if not num_seqs:
        return out
    config = config or DecodeAttentionConfig.choose(head_dim, kv.numbers.element_size())
    programs = num_programs or num_multiprocessors(q.device) * config.programs_per_multiprocessor
    group = num_heads // kv.num_kv_heads
    parts = torch.empty((programs, 2, group, head_dim), dtype=torch.float32, device=q.device)
    part_stats = torch.empty((programs, 2, 2, group), dtype=torch.float32, device=q.device)
    max_seqs = room_for_seqs(num_seqs)
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
        (softcap or 0.0) * LOG2_E,
        kv_lens if sinks is None else sinks,
        window or 0,
        HAS_WINDOW=window is not None,
        HAS_CAP=softcap is not None,
        HAS_SINKS=sinks is not None,
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
        kv_lens if sinks is None else sinks,
        window or 0,
        HAS_WINDOW=window is not None,
        HAS_SINKS=sinks is not None,
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


def benchmark_cases() -> tuple[Case, ...]:
    """The attention of one layer of Llama-3.1-8B (32 heads, 8 KV heads of 128), and of Llama-3.2-1B (heads of 64)."""
    fp8, int8 = torch.float8_e4m3fn, torch.int8
    ragged = [128 * 2 ** (i % 9) for i in range(64)]  # 128 to 32k
    return (
        _case("bf16 64 x 4k", [4096] * 64, target=0.85),
        _case("fp8 64 x 4k", [4096] * 64, kv_dtype=fp8, target=0.75),
        _case("int8 64 x 4k", [4096] * 64, kv_dtype=int8, target=0.75),
        _case("bf16 64 x 128 .. 32k", ragged, target=0.85),
        _case("bf16 64 x 2k", [2048] * 64, target=0.8),
        _case("bf16 256 x 1k", [1024] * 256, target=0.8),
        _case("bf16 1 x 4k", [4096]),
        _case("bf16 1 x 128k", [131072], target=0.8),
        _case("bf16 64 x 4k, heads of 64", [4096] * 64, head_dim=64, target=0.8),
        _case("bf16 64 x 16k, window 4k", [16384] * 64, window=4096, target=0.8),
    )


def tune_cases() -> tuple[Case, ...]:
    configs = [
        DecodeAttentionConfig(block_keys, num_warps, num_stages, programs)
        for block_keys, num_warps, num_stages, programs in (
            (64, 4, 3, 2), (64, 4, 3, 3), (64, 4, 4, 2), (64, 8, 4, 2), (32, 4, 4, 3), (32, 4, 4, 4), (32, 4, 5, 3),
            (128, 4, 3, 2), (128, 4, 4, 2), (128, 8, 3, 1),
        )
    ]  # fmt: skip
    return tuple(
        _case(f"{name} 64 x 4k {_label(config)}", [4096] * 64, kv_dtype=kv_dtype, config=config)
        for name, kv_dtype in (("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn))
        for config in configs
        if name == "fp8" or config.block_keys < 128
    )


def _label(config: DecodeAttentionConfig) -> str:
    return (
        f"keys {config.block_keys} warps {config.num_warps} stages {config.num_stages}"
        f" programs {config.programs_per_multiprocessor}"
    )


def _case(
    name: str,
    kv_lens: Sequence[int],
    *,
    head_dim: int = 128,
    kv_dtype: torch.dtype = torch.bfloat16,
    window: int | None = None,
    config: DecodeAttentionConfig | None = None,
    target: float | None = None,
) -> Case:
    seen = sum(min(kv_len, window or kv_len) for kv_len in kv_lens)
    num_bytes = seen * kv_bytes(8, head_dim, kv_dtype) + 2 * len(kv_lens) * 32 * head_dim * 2
    return Case(
        name=f"decode_attention {name}",
        setup=rotated(partial(_call, kv_lens, head_dim, kv_dtype, window, config), num_bytes),
        num_bytes=num_bytes,
        num_flops=4 * seen * 32 * head_dim,
        target=target,
    )


def _call(
    kv_lens: Sequence[int],
    head_dim: int,
    kv_dtype: torch.dtype,
    window: int | None,
    config: DecodeAttentionConfig | None,
    device: torch.device,
) -> Callable[[], object]:
    layer, page_table, lens = random_pages(kv_lens, 8, head_dim, 16, kv_dtype, device)
    q = torch.randn(len(kv_lens), 32, head_dim, dtype=torch.bfloat16, device=device)
    return lambda: decode_attention(q, layer, page_table, lens, head_dim**-0.5, window, config=config)
