"""Causal attention over paged keys and values, for steps that mix prefill chunks with decode tokens.

`plan_attention` turns the lengths and page tables of a step into index and mask tensors, once for all layers that
share a window; `paged_attention` runs one layer. Sequences with one query (decoding) are attended to together,
padded to the longest of their group; a prefill chunk is attended to alone, in blocks of queries:

    keys      0 ........ start ........ end
    block 0   [ cached  | * .          ]        *  causal part, masked by a bias
    block 1   [ cached  |   * .        ]        keys past a block's last query are not read at all,
    block 2   [ cached  |     * .      ]        nor are those before its first query's window
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from slipstream.kernels.pages.quantized_kv import gather_quantized_kv, is_quantized

QUERY_BLOCK = 128  # smaller wastes less of the causal triangle, larger makes fewer calls: best of 64 .. 512 on CPU
GROUP_SLACK_PAGES = 4  # decode sequences this much shorter than half of the longest still share its group


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """`num_seqs` sequences with one query each, rows `first .. first + num_seqs` of the plan's order."""

    first: int
    num_seqs: int
    page_rows: Tensor  # [2 * seqs * kv_heads * pages]: K or V run of a head of a page
    bias: Tensor  # [seqs * kv_heads, 1, keys]: 0, or -inf where the sequence has no key


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Queries `first .. last` of a chunk against keys `first_key .. last_key` of what the chunk gathers."""

    first: int
    last: int
    first_key: int
    last_key: int
    bias: Tensor  # [queries, keys]


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Several queries of one sequence, rows `first .. ` of the plan's order."""

    first: int
    page_rows: Tensor  # [2 * kv_heads * pages]
    blocks: tuple[QueryBlock, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Decode groups come first, then chunks. `order` maps that order to rows of the step, None where they agree."""

    groups: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]
    order: Tensor | None
    inverse: Tensor | None


def plan_attention(
    query_lens: Sequence[int],
    kv_lens: Sequence[int],
    page_table: Tensor,
    *,
    num_kv_heads: int,
    page_tokens: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> AttentionPlan:
    """Plans a step of `len(query_lens)` sequences whose queries lie one after the other.

    The queries of a sequence are the last of its `kv_lens` positions. `page_table` is [seqs, max_pages] int64 on the
    host. With a `window` a query sees its own key and the `window - 1` before it (as Mistral does). `dtype` and
    `device` are those of the queries.
    """
    starts = np.cumsum([0, *query_lens])
    pages = _LayerPages(page_table.numpy(), num_kv_heads, page_tokens, window, dtype, device)
    order: list[int] = []
    groups = []
    for seqs in _group_by_length([i for i, n in enumerate(query_lens) if n == 1], kv_lens, page_tokens, window):
        groups.append(pages.decode_group(len(order), seqs, [kv_lens[i] for i in seqs]))
        order.extend(int(starts[i]) for i in seqs)
    chunks = []
    for i, num_queries in enumerate(query_lens):
        if num_queries > 1:
            chunks.append(pages.prefill_chunk(len(order), i, num_queries, kv_lens[i]))
            order.extend(range(starts[i], starts[i + 1]))
    if order == list(range(len(order))):
        return AttentionPlan(tuple(groups), tuple(chunks), None, None)
    permutation = torch.tensor(order, device=device)
    return AttentionPlan(tuple(groups), tuple(chunks), permutation, permutation.argsort())


def paged_attention(
    q: Tensor,
    kv_layer: Tensor,
    plan: AttentionPlan,
    scale: float,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    value_dim: int | None = None,
) -> Tensor:
    """Attends `q` [tokens, heads, head_dim] to the pages of one layer [pages, kv_heads, 2, page_tokens, head_dim], or
    [pages, kv_heads, head_bytes] where they are quantised (see `quantized_kv`). Where values are `value_dim` wide and
    keys are not, it is [pages, kv_heads, page_tokens * (head_dim + value_dim)], a head's keys before its values.

    The keys and values of the step's own tokens must be in their pages already. Heads share keys in runs of
    heads / kv_heads. With `softcap` scores are softcap * tanh(score / softcap). `sinks` [heads] are the scores of one
    more key of each head, whose value is zero. Returns [tokens, heads, value_dim].
    """
    ordered = q if plan.order is None else q.index_select(0, plan.order)
    value_dim = q.shape[2] if value_dim is None else value_dim
    out = torch.empty((*q.shape[:2], value_dim), dtype=q.dtype, device=q.device)
    scores = _Scores(scale, softcap, sinks)
    for group in plan.groups:
        rows = slice(group.first, group.first + group.num_seqs)
        out[rows] = _attend_group(ordered[rows], kv_layer, group, scores, value_dim)
    for chunk in plan.chunks:
        _attend_chunk(ordered, out, kv_layer, chunk, scores)
    return out if plan.inverse is None else out.index_select(0, plan.inverse)


@dataclass(frozen=True, slots=True)
class _Scores:
    scale: float
    softcap: float | None
    sinks: Tensor | None  # [heads]

    @property
    def are_plain(self) -> bool:
        return self.softcap is None and self.sinks is None

    def weights(self, q: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """[.., kv_heads, group, queries, keys] of q [.., kv_heads, group, queries, head_dim] and keys
        [.., kv_heads, 1, keys, head_dim]. `bias` is added to scores."""
        scores = (q @ keys.transpose(-1, -2)).float() * self.scale
        if self.softcap is not None:
            scores = self.softcap * (scores / self.softcap).tanh()
        scores += bias
        if self.sinks is None:
            return scores.softmax(-1).to(q.dtype)
        sinks = self.sinks.float().view(*q.shape[-4:-2], 1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1].to(q.dtype)


def _attend_group(q: Tensor, kv_layer: Tensor, group: DecodeGroup, rule: _Scores, value_dim: int) -> Tensor:
    """[seqs, heads, head_dim] to [seqs, heads, value_dim], as two batched products over (sequence, kv head)."""
    num_kv_heads, head_dim = kv_layer.shape[1], q.shape[2]
    keys, values = _gather(kv_layer, group.page_rows, q, value_dim)
    keys = keys.reshape(group.num_seqs * num_kv_heads, -1, head_dim)
    values = values.reshape(group.num_seqs * num_kv_heads, -1, value_dim)
    queries = q.reshape(group.num_seqs * num_kv_heads, -1, head_dim)  # [seqs * kv_heads, heads a kv head, head_dim]
    if rule.are_plain:
        scores = torch.baddbmm(group.bias, queries, keys.transpose(1, 2), alpha=rule.scale)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    else:
        seqs = group.num_seqs
        weights = rule.weights(
            queries.view(seqs, num_kv_heads, -1, 1, head_dim),
            keys.view(seqs, num_kv_heads, 1, -1, head_dim),
            group.bias.view(seqs, num_kv_heads, 1, 1, -1),
        ).reshape(*queries.shape[:2], -1)
    return torch.bmm(weights, values).view(*q.shape[:2], value_dim)


def _attend_chunk(q: Tensor, out: Tensor, kv_layer: Tensor, chunk: PrefillChunk, rule: _Scores) -> None:
    num_kv_heads, head_dim, value_dim = kv_layer.shape[1], q.shape[2], out.shape[2]
    keys, values = _gather(kv_layer, chunk.page_rows, q, value_dim)
    keys, values = keys.reshape(1, num_kv_heads, -1, head_dim), values.reshape(1, num_kv_heads, -1, value_dim)
    for block in chunk.blocks:
        rows = slice(chunk.first + block.first, chunk.first + block.last)
        queries = q[rows].transpose(0, 1)[None]  # [1, heads, queries, head_dim]
        own_keys = keys[:, :, block.first_key : block.last_key]
        own_values = values[:, :, block.first_key : block.last_key]
        if rule.are_plain:
            attended = F.scaled_dot_product_attention(
                queries,
                own_keys,
                own_values,
                attn_mask=block.bias,
                scale=rule.scale,
                enable_gqa=q.shape[1] != num_kv_heads,
            )
        else:
            by_kv_head = queries.reshape(1, num_kv_heads, -1, *queries.shape[2:])
            weights = rule.weights(by_kv_head, own_keys[:, :, None], block.bias)
            attended = (weights @ own_values[:, :, None]).flatten(1, 2)
        out[rows] = attended[0].transpose(0, 1)


def _gather(kv_layer: Tensor, page_rows: Tensor, q: Tensor, value_dim: int) -> tuple[Tensor, Tensor]:
    """Keys [pages, page_tokens * head_dim] and values of pages in the order of `page_rows`. Copies runs of numbers:
    long enough that this goes at the speed of memory."""
    key_rows = page_rows[: len(page_rows) // 2]  # values lie right behind, in the same run of a head
    if is_quantized(kv_layer):
        keys, values = gather_quantized_kv(kv_layer, key_rows // 2, q.shape[2], q.dtype).contiguous()
        return keys, values
    if kv_layer.dim() == 3:
        num_heads, runs = kv_layer.shape[1], key_rows // 2
        both = kv_layer[runs // num_heads, runs % num_heads]
        keys, values = both.split_with_sizes(_run_widths(kv_layer.shape[2], q.shape[2], value_dim), dim=1)
        return keys, values
    keys, values = kv_layer.view(-1, kv_layer.shape[3] * kv_layer.shape[4]).index_select(0, page_rows).chunk(2)
    return keys, values


def _run_widths(run: int, head_dim: int, value_dim: int) -> list[int]:
    """Numbers of keys and of values in the run of a head in a page. Raises ValueError."""
    page_tokens, rest = divmod(run, head_dim + value_dim)
    if rest:
        raise ValueError(f"kv_layer: runs of {run} numbers hold no keys of {head_dim} and values of {value_dim}")
    return [page_tokens * head_dim, page_tokens * value_dim]


def _group_by_length(seqs: list[int], kv_lens: Sequence[int], page_tokens: int, window: int | None) -> list[list[int]]:
    """Splits sequences into groups in which none is padded to much more than twice its length."""
    groups: list[list[int]] = []
    longest = 0
    visible = {i: min(kv_lens[i], window or kv_lens[i]) for i in seqs}
    for i in sorted(seqs, key=lambda i: -visible[i]):
        if not groups or longest > 2 * visible[i] + GROUP_SLACK_PAGES * page_tokens:
            groups.append([])
            longest = visible[i]
        groups[-1].append(i)
    return [sorted(group) for group in groups]


@dataclass(frozen=True, slots=True)
class _LayerPages:
    """The page tables of a step and how to address them."""

    table: NDArray[np.int64]  # [seqs, max_pages]
    num_kv_heads: int
    page_tokens: int
    window: int | None
    dtype: torch.dtype
    device: torch.device

    def decode_group(self, first: int, seqs: list[int], kv_lens: list[int]) -> DecodeGroup:
        kv_len = np.array(kv_lens)[:, None]
        first_key = np.zeros_like(kv_len) if self.window is None else np.maximum(kv_len - self.window, 0)
        first_page, last_page = first_key // self.page_tokens, (kv_len - 1) // self.page_tokens
        columns = first_page + np.arange((last_page - first_page).max() + 1)
        # Padding repeats the sequence's own last page: whatever another sequence's page holds, even nan, stays out.
        page_ids = self.table[np.array(seqs)[:, None], np.minimum(columns, last_page)]
        keys = (columns[:, :, None] * self.page_tokens + np.arange(self.page_tokens)).reshape(len(seqs), -1)
        bias = np.where((keys < first_key) | (keys >= kv_len), np.float32("-inf"), np.float32(0))
        bias = np.repeat(bias, self.num_kv_heads, axis=0)[:, None]
        return DecodeGroup(
            first, len(seqs), self._page_rows(page_ids), torch.from_numpy(bias).to(self.device, self.dtype)
        )

    def prefill_chunk(self, first: int, seq: int, num_queries: int, kv_len: int) -> PrefillChunk:
        start = kv_len - num_queries  # position of the first query
        first_page = self._first_key(start) // self.page_tokens
        gathered_from = first_page * self.page_tokens
        page_ids = self.table[seq : seq + 1, first_page : (kv_len - 1) // self.page_tokens + 1]
        blocks = []
        for query in range(0, num_queries, QUERY_BLOCK):
            last = min(query + QUERY_BLOCK, num_queries)
            first_key, last_key = self._first_key(start + query), start + last
            bias = self._causal_bias(last - query, last_key - first_key)
            blocks.append(QueryBlock(query, last, first_key - gathered_from, last_key - gathered_from, bias))
        return PrefillChunk(first, self._page_rows(page_ids), tuple(blocks))

    def _first_key(self, position: int) -> int:
        return 0 if self.window is None else max(position - self.window + 1, 0)

    def _causal_bias(self, num_queries: int, num_keys: int) -> Tensor:
        """The last query stands at the last key."""
        masked = torch.full((num_queries, num_keys), float("-inf"), dtype=self.dtype, device=self.device)
        offset = num_keys - num_queries  # key column of the first query
        bias = masked.triu(offset + 1)
        return bias if self.window is None else bias + masked.tril(offset - self.window)

    def _page_rows(self, page_ids: NDArray[np.int64]) -> Tensor:
        """[seqs, pages] -> flat [2, seqs, kv_heads, pages] row numbers, so that one gather brings keys and values
        in the order in which they are multiplied."""
        heads = np.arange(self.num_kv_heads)[:, None]
        key_rows = (page_ids[:, None, :] * self.num_kv_heads + heads) * 2
        return torch.from_numpy(np.stack((key_rows, key_rows + 1)).reshape(-1)).to(self.device)
