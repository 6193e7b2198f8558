"""Keys and values in eight bits: accuracy, the form of a page, attention over such pages."""

from __future__ import annotations

import pytest
import torch

from slipstream.kernels.attention.paged_attention import paged_attention, plan_attention
from slipstream.kernels.pages.kv_pages import kv_rows, write_kv
from slipstream.kernels.pages.quantized_kv import (
    LARGEST_CODE,
    codes_and_scales,
    dequantize_kv,
    head_bytes,
    page_tokens_of,
    quantize_kv,
    write_quantized_kv,
)

KINDS = tuple(LARGEST_CODE)
HALF_STEP = {torch.int8: 0.5 / 127, torch.float8_e4m3fn: 16 / 448}  # of the row's largest magnitude


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_comes_back_within_half_a_step_of_its_own_rows_scale(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 3, 32) * torch.logspace(-6, 6, 50)[:, None, None]
    codes, scales = quantize_kv(x, kind)
    error = (dequantize_kv(codes, scales, torch.float32) - x).abs()
    assert (error <= 1.0001 * HALF_STEP[kind] * x.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_and_what_vanishes_beside_float32_become_zeros(kind: torch.dtype) -> None:
    codes, scales = quantize_kv(torch.tensor([[0.0, 0.0], [1e-38, -1e-38]]), kind)
    assert torch.isfinite(scales).all()
    assert dequantize_kv(codes, scales, torch.float32).abs().max() < 1e-30


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_that_is_none_does_not_come_back_as_one(kind: torch.dtype) -> None:
    codes, scales = quantize_kv(torch.tensor([[1.0, float("nan")], [2.0, float("inf")]]), kind)
    assert not dequantize_kv(codes, scales, torch.float32).isfinite().all(-1).any()


def test_int8_rounds_halves_to_even() -> None:
    codes, _ = quantize_kv(torch.tensor([[127.0, 0.5, 1.5, -2.5, -126.5]]), torch.int8)
    assert codes.tolist() == [[127, 0, 2, -2, -126]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_a_page_is_key_codes_value_codes_key_scales_value_scales(kind: torch.dtype) -> None:
    page_tokens, head_dim, kv_heads = 8, 32, 2
    layer = torch.zeros(3, kv_heads, head_bytes(page_tokens, head_dim), dtype=torch.uint8)
    keys, values = torch.randn(2, 1, kv_heads, head_dim)
    write_quantized_kv(layer.view(kind), keys, values, torch.tensor([2 * page_tokens + 5]))
    run, codes_bytes = layer[2, 1], page_tokens * head_dim
    for i, x in enumerate((keys, values)):
        codes, scales = quantize_kv(x[0, 1], kind)
        assert torch.equal(run[i * codes_bytes :][5 * head_dim : 6 * head_dim], codes.view(torch.uint8))
        stored_scales = run[2 * codes_bytes :].view(torch.float32)
        assert stored_scales[i * page_tokens + 5] == scales
    assert page_tokens_of(layer.view(kind), head_dim) == page_tokens
    assert not layer[:2].any()
    assert layer.view(torch.float32)[..., 2 * codes_bytes // 4 :].count_nonzero() == 2 * kv_heads


def test_a_run_of_bytes_that_holds_no_whole_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole number of tokens"):
        page_tokens_of(torch.zeros(1, 1, 100, dtype=torch.int8), 32)


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_over_quantised_pages_is_attention_over_what_they_stand_for(
    kind: torch.dtype, window: int | None
) -> None:
    torch.manual_seed(0)
    page_tokens, head_dim, kv_heads, kv_lens, query_lens = 4, 16, 2, [9, 30, 1, 17], [1, 7, 1, 1]
    page_table = torch.randperm(4 * 8).view(4, 8)
    quantized = torch.zeros(32, kv_heads, head_bytes(page_tokens, head_dim), dtype=torch.uint8).view(kind)
    plain = torch.zeros(32, kv_heads, 2, page_tokens, head_dim)
    for pages, kv_len in zip(page_table, kv_lens, strict=True):
        keys, values = torch.randn(2, kv_len, kv_heads, head_dim)
        positions = torch.arange(kv_len)
        slots = pages[positions // page_tokens] * page_tokens + positions % page_tokens
        write_quantized_kv(quantized, keys, values, slots)
        rows = kv_rows(slots, kv_heads, page_tokens)
        write_kv(plain, *(dequantize_kv(*quantize_kv(x, kind), torch.float32) for x in (keys, values)), rows)
    codes, scales = codes_and_scales(quantized, head_dim)
    assert torch.equal(dequantize_kv(codes, scales, torch.float32), plain)
    plan = plan_attention(
        query_lens,
        kv_lens,
        page_table,
        num_kv_heads=kv_heads,
        page_tokens=page_tokens,
        window=window,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    q = torch.randn(sum(query_lens), 6, head_dim)
    assert torch.equal(paged_attention(q, quantized, plan, 0.3), paged_attention(q, plain, plan, 0.3))
