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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import triton
from torch import Tensor

from slipstream.kernels.attention.gpu.prefill_attention_kernel import prefill_attention_kernel
from slipstream.kernels.benchmark.benchmark_case import Case, rotated
from slipstream.kernels.benchmark.random_pages import kv_bytes, random_pages
from slipstream.kernels.pages.gpu.kv_layer import LOG2_E, KvLayer, room_for_seqs


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
    softcap: float | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    config: PrefillConfig | None = None,
) -> Tensor:
    """Attends the last positions of each sequence, those of its queries, to its `kv_lens` first positions, causally.

    `q` is [tokens, heads, head_dim], heads dense; the queries of sequence i are rows `query_starts[i] ..
    query_starts[i + 1]`, none or more. `kv_layer` is a layer of the pool, plain or quantised (see `KvLayer`), in which
    the keys and values of these positions are already. `page_table` [seqs, max_pages], `query_starts` [seqs + 1] and
    `kv_lens` [seqs] are int32 on the device. With a `window` a query sees itself and the `window - 1` positions before.
    With a `softcap` scores are softcap * tanh(score / softcap). `sinks` [heads] float32 are the scores of one more key
    of each head, whose value is zero.
    Nothing behind a sequence's last position is read. Rows behind the last query are not written. Launches depend on
    shapes alone. Returns `out` [tokens, heads, head_dim]. Raises ValueError.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_seqs = kv_lens.shape[0]
    kv = KvLayer.of(kv_layer, head_dim, q.dtype)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    kv.check_step(q, out, page_table, kv_lens, scale, window, softcap, sinks)
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
        MAX_SEQS=room_for_seqs(num_seqs),
        BLOCK_ROWS=config.block_rows,
        BLOCK_KEYS=config.block_keys,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def benchmark_cases() -> tuple[Case, ...]:
    """The attention of one layer of Llama-3.1-8B (32 heads, 8 KV heads of 128), and of Llama-3.2-1B (heads of 64)."""
    fp8 = torch.float8_e4m3fn
    return (
        _case("bf16 1 x 4k", [4096], [4096], target=0.5),
        _case("bf16 4 x 4k", [4096] * 4, [4096] * 4, target=0.6),
        _case("bf16 1 x 32k", [32768], [32768], target=0.6),
        _case("bf16 16 x 512", [512] * 16, [512] * 16),
        _case("bf16 2k after 30k cached", [2048], [32768], target=0.6),
        _case("bf16 ragged 64 .. 4k", [64 * 2 ** (i % 7) for i in range(14)], [64 * 2 ** (i % 7) for i in range(14)]),
        _case("fp8 4 x 4k", [4096] * 4, [4096] * 4, kv_dtype=fp8),
        _case("bf16 4 x 4k, heads of 64", [4096] * 4, [4096] * 4, head_dim=64),
        _case("bf16 1 x 32k, window 4k", [32768], [32768], window=4096),
    )


def tune_cases() -> tuple[Case, ...]:
    configs = ((128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (128, 32, 8, 3))
    return tuple(
        _case(f"{name} 4 x 4k {config}", [4096] * 4, [4096] * 4, kv_dtype=kv_dtype, config=PrefillConfig(*config))
        for name, kv_dtype in (("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn))
        for config in configs
    )


def _case(
    name: str,
    query_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    head_dim: int = 128,
    kv_dtype: torch.dtype = torch.bfloat16,
    window: int | None = None,
    config: PrefillConfig | None = None,
    target: float | None = None,
) -> Case:
    pairs = sum(
        min(position + 1, window or kv_len)
        for queries, kv_len in zip(query_lens, kv_lens, strict=True)
        for position in range(kv_len - queries, kv_len)
    )
    num_bytes = sum(kv_lens) * kv_bytes(8, head_dim, kv_dtype) + 2 * sum(query_lens) * 32 * head_dim * 2
    return Case(
        name=f"prefill_attention {name}",
        setup=rotated(partial(_call, query_lens, kv_lens, head_dim, kv_dtype, window, config), num_bytes),
        num_bytes=num_bytes,
        num_flops=4 * pairs * 32 * head_dim,
        target=target,
    )


def _call(
    query_lens: Sequence[int],
    kv_lens: Sequence[int],
    head_dim: int,
    kv_dtype: torch.dtype,
    window: int | None,
    config: PrefillConfig | None,
    device: torch.device,
) -> Callable[[], object]:
    layer, page_table, lens = random_pages(kv_lens, 8, head_dim, 16, kv_dtype, device)
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(device, torch.int32)
    q = torch.randn(sum(query_lens), 32, head_dim, dtype=torch.bfloat16, device=device)
    return lambda: prefill_attention(q, layer, page_table, starts, lens, head_dim**-0.5, window, config=config)
