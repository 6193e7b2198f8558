"""Paged attention against plain causal attention over each sequence's keys, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from slipstream.kernels.attention.paged_attention import QUERY_BLOCK, AttentionPlan, paged_attention, plan_attention
from slipstream.kernels.pages.kv_pages import kv_rows, write_kv

HEAD_DIM = 8
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2}


@dataclass
class Step:
    """Sequences in scattered pages of one layer. Free pages are nan; behind a sequence's last token are zeros."""

    query_lens: list[int]
    kv_lens: list[int]
    page_tokens: int
    heads: int
    kv_heads: int
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        num_pages = [-(-n // self.page_tokens) for n in self.kv_lens]
        page_ids = torch.randperm(sum(num_pages) + 3)
        self.page_table = torch.zeros(len(num_pages), max(num_pages), dtype=torch.int64)
        self.kv_layer = torch.full(
            (len(page_ids), self.kv_heads, 2, self.page_tokens, HEAD_DIM), float("nan"), dtype=self.dtype
        )
        self.keys, self.values, self.queries = [], [], []
        first = 0
        for row, kv_len, query_len, pages in zip(
            self.page_table, self.kv_lens, self.query_lens, num_pages, strict=True
        ):
            row[:pages] = page_ids[first : first + pages]
            first += pages
            self.kv_layer[row[pages - 1]] = 0
            keys, values = torch.randn(2, kv_len, self.kv_heads, HEAD_DIM).to(self.dtype)
            positions = torch.arange(kv_len)
            slots = row[positions // self.page_tokens] * self.page_tokens + positions % self.page_tokens
            write_kv(self.kv_layer, keys, values, kv_rows(slots, self.kv_heads, self.page_tokens))
            self.keys.append(keys)
            self.values.append(values)
            self.queries.append(torch.randn(query_len, self.heads, HEAD_DIM).to(self.dtype))

    def plan(self, window: int | None) -> AttentionPlan:
        return plan_attention(
            self.query_lens,
            self.kv_lens,
            self.page_table,
            num_kv_heads=self.kv_heads,
            page_tokens=self.page_tokens,
            window=window,
            dtype=self.dtype,
            device=torch.device("cpu"),
        )

    def attend(self, window: int | None, scale: float) -> Tensor:
        return paged_attention(torch.cat(self.queries), self.kv_layer, self.plan(window), scale)

    def expected(self, window: int | None, scale: float) -> Tensor:
        results = []
        for queries, keys, values in zip(self.queries, self.keys, self.values, strict=True):
            offset = len(keys) - len(queries)
            for i, query in enumerate(queries.double()):
                position = offset + i
                seen = slice(0 if window is None else max(position - window + 1, 0), position + 1)
                shared = self.heads // self.kv_heads
                k = keys.double()[seen].repeat_interleave(shared, dim=1)
                v = values.double()[seen].repeat_interleave(shared, dim=1)
                weights = torch.softmax(torch.einsum("hd,khd->hk", query, k) * scale, dim=-1)
                results.append(torch.einsum("hk,khd->hd", weights, v))
        return torch.stack(results)

    def check(self, window: int | None = None, scale: float = 0.4) -> None:
        tolerance = TOLERANCE[self.dtype]
        got = self.attend(window, scale)
        assert got.dtype == self.dtype
        torch.testing.assert_close(got.double(), self.expected(window, scale), atol=tolerance, rtol=tolerance)


HEADS = [(4, 4), (4, 2), (6, 1)]
WINDOWS = [None, 1, 5, 24]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("window", WINDOWS)
def test_mixed_step_equals_plain_attention(heads: int, kv_heads: int, window: int | None, dtype: torch.dtype) -> None:
    step = Step([1, 7, 1, 30, 1, 2], [1, 7, 40, 55, 16, 33], 4, heads, kv_heads, dtype)
    step.check(window)


@pytest.mark.parametrize("window", [None, 24, QUERY_BLOCK + 50])
@pytest.mark.parametrize("cached", [0, 5, 200])
def test_long_chunk_runs_in_blocks_that_see_all_their_keys(cached: int, window: int | None) -> None:
    queries = 2 * QUERY_BLOCK + 3
    Step([queries], [cached + queries], 16, 2, 1).check(window)


@settings(max_examples=60, deadline=None)
@given(
    sequences=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 90)), min_size=1, max_size=9),
    page_tokens=st.sampled_from([1, 3, 8]),
    heads=st.sampled_from(HEADS),
    window=st.sampled_from(WINDOWS),
)
def test_any_step_equals_plain_attention(
    sequences: list[tuple[int, int]], page_tokens: int, heads: tuple[int, int], window: int | None
) -> None:
    query_lens = [queries for queries, _ in sequences]
    kv_lens = [queries + cached for queries, cached in sequences]
    Step(query_lens, kv_lens, page_tokens, *heads).check(window)


def test_short_sequences_are_not_padded_to_the_longest_of_the_step() -> None:
    step = Step([1] * 6, [1000, 990, 30, 20, 10, 400], 4, 2, 1)
    plan = step.plan(None)
    gathered = sum(group.bias.numel() for group in plan.groups)
    assert len(plan.groups) == 3
    assert gathered < 1.5 * sum(step.kv_lens)
    step.check()


def test_a_window_bounds_the_pages_that_are_read() -> None:
    step = Step([1, 10], [1000, 1000], 4, 2, 1)
    plan = step.plan(8)
    assert plan.groups[0].page_rows.numel() == 2 * 2
    assert plan.chunks[0].page_rows.numel() == 2 * 5  # keys 983 .. 999 of pages 245 .. 249


def test_decoding_alone_keeps_the_order_of_the_step() -> None:
    plan = Step([1, 1, 1], [5, 9, 7], 4, 2, 1).plan(None)
    assert plan.order is None
    assert len(plan.groups) == 1


def test_written_keys_and_values_land_in_their_slots_and_nowhere_else() -> None:
    kv_layer = torch.zeros(5, 2, 2, 4, HEAD_DIM)
    keys, values = torch.randn(2, 3, 2, HEAD_DIM)
    slots = torch.tensor([3 * 4 + 3, 4 * 4, 1 * 4 + 2])
    write_kv(kv_layer, keys, values, kv_rows(slots, 2, 4))
    for token, (page, offset) in enumerate([(3, 3), (4, 0), (1, 2)]):
        assert torch.equal(kv_layer[page, :, 0, offset], keys[token])
        assert torch.equal(kv_layer[page, :, 1, offset], values[token])
        kv_layer[page, :, :, offset] = 0
    assert not kv_layer.any()
