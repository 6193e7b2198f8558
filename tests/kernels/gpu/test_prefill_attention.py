"""Prefill attention against plain causal attention in float64."""

from __future__ import annotations

import pytest
import torch

from slipstream.kernels.attention.gpu.prefill_attention import PrefillConfig, prefill_attention
from tests.support.kernels.paged_sequences import PagedSequences, assert_close

QUERY_LENS = [7, 1, 0, 33, 12]
KV_LENS = [7, 40, 5, 70, 13]
SMALL_BLOCKS = PrefillConfig(block_rows=16, block_keys=16, num_warps=4, num_stages=2)  # so that short chunks have many


def check(
    step: PagedSequences,
    window: int | None = None,
    config: PrefillConfig | None = SMALL_BLOCKS,
    *,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    out = torch.full_like(step.q, float("nan"))
    prefill_attention(
        step.q,
        step.layer,
        step.page_table,
        step.query_starts,
        step.kv_len_tensor,
        0.3,
        window,
        softcap=softcap,
        sinks=sinks,
        out=out,
        config=config,
    )
    assert_close(out, step.expected(0.3, window, softcap, sinks), step.dtype)


def chunks(query_lens: list[int], kv_lens: list[int], device: torch.device, **form: object) -> PagedSequences:
    shape = {"heads": 6, "kv_heads": 2, "head_dim": 32, "page_tokens": 16} | form
    return PagedSequences(query_lens, kv_lens, device=device, **shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [None, 1, 9, 17, 40])
def test_prompts_chunks_and_decode_tokens_in_one_step_equal_plain_attention(
    window: int | None, device: torch.device
) -> None:
    check(chunks(QUERY_LENS, KV_LENS, device, page_tokens=8), window)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_the_blocks_of_production(
    dtype: torch.dtype, window: int | None, device: torch.device
) -> None:
    check(chunks([60, 3], [200, 3], device, dtype=dtype), window, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_pages(kv_dtype: torch.dtype, dtype: torch.dtype, device: torch.device) -> None:
    check(chunks(QUERY_LENS, KV_LENS, device, dtype=dtype, kv_dtype=kv_dtype, page_tokens=8), 25)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_tokens"), [(4, 4, 64, 32), (16, 1, 256, 64), (14, 2, 80, 8), (3, 1, 96, 16)]
)
def test_head_shapes(heads: int, kv_heads: int, head_dim: int, page_tokens: int, device: torch.device) -> None:
    form = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "page_tokens": page_tokens}
    check(chunks([20, 3], [20, 70], device, **form))


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("kv_dtype", [None, torch.int8])
def test_scores_are_capped_and_sinks_take_their_part(
    kv_dtype: torch.dtype | None, window: int | None, device: torch.device
) -> None:
    step = chunks(QUERY_LENS, KV_LENS, device, kv_dtype=kv_dtype)
    check(step, window, softcap=1.5, sinks=torch.linspace(-2, 3, 6, device=device))


def test_random_steps_equal_plain_attention(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*bounds: int) -> list[int]:
        return [int(torch.randint(0, bound, (), generator=generator)) for bound in bounds]

    for window in (None, 1, 12, 50):
        query_lens = draw(*[30] * (1 + draw(4)[0]))
        kv_lens = [queries + cached for queries, cached in zip(query_lens, draw(*[70] * len(query_lens)), strict=True)]
        check(chunks(query_lens, kv_lens, device, head_dim=16), window)


def test_rows_behind_the_last_query_stay_as_they_are(device: torch.device) -> None:
    step = chunks([5, 2], [5, 9], device)
    padded = torch.cat((step.q, torch.full_like(step.q[:4], float("nan"))))
    out = torch.full_like(padded, 7)
    layer, page_table, starts, kv_lens = step.layer, step.page_table, step.query_starts, step.kv_len_tensor
    prefill_attention(padded, layer, page_table, starts, kv_lens, 0.3, out=out, config=SMALL_BLOCKS)
    assert_close(out[:7], step.expected(0.3, None), step.dtype)
    assert (out[7:] == 7).all()


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("q", lambda step: step.q.double()),
        ("q", lambda step: step.q.transpose(0, 1).contiguous().transpose(0, 1)),
        ("layer", lambda step: step.layer[:, :, :1]),
        ("page_table", lambda step: step.page_table.long()),
        ("kv_len_tensor", lambda step: step.kv_len_tensor.long()),
        ("query_starts", lambda step: step.query_starts[1:]),
        ("query_starts", lambda step: step.query_starts.long()),
    ],
)
def test_wrong_arguments_are_refused_by_name(argument: str, wrong: object, device: torch.device) -> None:
    step = chunks([9, 30], [9, 30], device)
    setattr(step, argument, wrong(step))  # type: ignore[operator]
    name = {"layer": "kv_layer", "kv_len_tensor": "kv_lens"}.get(argument, argument)
    with pytest.raises(ValueError, match=f"^{name}: "):
        prefill_attention(step.q, step.layer, step.page_table, step.query_starts, step.kv_len_tensor, 0.3)
