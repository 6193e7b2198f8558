"""Decode attention against plain attention in float64."""

from __future__ import annotations

import pytest
import torch

from slipstream.kernels.attention.gpu.decode_attention import DecodeAttentionConfig, decode_attention
from tests.support.kernels.paged_sequences import PagedSequences, assert_close

RAGGED = [1, 40, 0, 17, 130, 16, 0, 5]
SMALL_BLOCKS = DecodeAttentionConfig(block_keys=16)  # so that short sequences have many


def check(
    step: PagedSequences,
    window: int | None = None,
    *,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    config: DecodeAttentionConfig | None = None,
    num_programs: int = 5,
) -> None:
    out = torch.full_like(step.q, float("nan"))
    decode_attention(
        step.q,
        step.layer,
        step.page_table,
        step.kv_len_tensor,
        0.3,
        window,
        softcap=softcap,
        sinks=sinks,
        out=out,
        config=config,
        num_programs=num_programs,
    )
    assert_close(out, step.expected(0.3, window, softcap, sinks), step.dtype)


def ragged_step(kv_lens: list[int], device: torch.device, **form: object) -> PagedSequences:
    shape = {"heads": 6, "kv_heads": 2, "head_dim": 32, "page_tokens": 16} | form
    return PagedSequences([1] * len(kv_lens), kv_lens, device=device, **shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [None, 1, 24])
@pytest.mark.parametrize("num_programs", [1, 3, 40])
def test_ragged_sequences_equal_plain_attention_wherever_their_blocks_are_cut(
    num_programs: int, window: int | None, device: torch.device
) -> None:
    check(ragged_step(RAGGED, device), window, config=SMALL_BLOCKS, num_programs=num_programs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, device: torch.device) -> None:
    check(ragged_step(RAGGED, device, dtype=dtype, page_tokens=8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_pages(kv_dtype: torch.dtype, dtype: torch.dtype, device: torch.device) -> None:
    check(ragged_step(RAGGED, device, dtype=dtype, kv_dtype=kv_dtype, page_tokens=8), 33)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_tokens"), [(8, 8, 64, 32), (20, 1, 256, 64), (14, 2, 80, 8), (3, 1, 96, 16)]
)
def test_head_shapes(heads: int, kv_heads: int, head_dim: int, page_tokens: int, device: torch.device) -> None:
    step = ragged_step(
        [70, 3], device, heads=heads, kv_heads=kv_heads, head_dim=head_dim, page_tokens=page_tokens, dtype=torch.float32
    )
    check(step)


@pytest.mark.parametrize("kv_dtype", [None, torch.int8])
@pytest.mark.parametrize("num_programs", [1, 40])
def test_scores_are_capped_and_sinks_take_their_part(
    num_programs: int, kv_dtype: torch.dtype | None, device: torch.device
) -> None:
    sinks = torch.linspace(-2, 3, 6, device=device)
    step = ragged_step(RAGGED, device, kv_dtype=kv_dtype)
    check(step, 24, softcap=1.5, sinks=sinks, config=SMALL_BLOCKS, num_programs=num_programs)


def test_random_steps_equal_plain_attention(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        num_seqs, longest, programs = (int(torch.randint(1, n, (), generator=generator)) for n in (7, 120, 30))
        kv_lens = torch.randint(0, longest + 1, (num_seqs,), generator=generator).tolist()
        check(ragged_step(kv_lens, device, head_dim=16), config=SMALL_BLOCKS, num_programs=programs)


def test_sequences_of_length_zero_alone_give_zeros(device: torch.device) -> None:
    check(ragged_step([0, 0, 0], device))


def test_rows_of_a_wider_matrix_are_taken_and_written_in_place(device: torch.device) -> None:
    step = ragged_step([9, 30], device)
    wide = torch.cat((step.q.flatten(1), torch.full((2, 64), float("nan"), device=device)), dim=1)
    out = torch.full_like(wide, 7)
    rows = (x[:, : step.q[0].numel()].unflatten(1, step.q.shape[1:]) for x in (wide, out))
    q, attended = rows
    decode_attention(q, step.layer, step.page_table, step.kv_len_tensor, 0.3, out=attended)
    assert_close(attended, step.expected(0.3, None), step.dtype)
    assert (out[:, step.q[0].numel() :] == 7).all()


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("q", lambda step: step.q.double()),
        ("q", lambda step: step.q.bfloat16()),
        ("q", lambda step: step.q.transpose(0, 1).contiguous().transpose(0, 1)),
        ("layer", lambda step: step.layer[:, :, :1]),
        ("layer", lambda step: step.layer.transpose(1, 2).contiguous().transpose(1, 2)),
        ("page_table", lambda step: step.page_table.long()),
        ("page_table", lambda step: step.page_table[1:]),
        ("kv_len_tensor", lambda step: step.kv_len_tensor.long()),
        ("kv_len_tensor", lambda step: step.kv_len_tensor[1:]),
    ],
)
def test_wrong_arguments_are_refused_by_name(argument: str, wrong: object, device: torch.device) -> None:
    step = ragged_step([9, 30], device)
    setattr(step, argument, wrong(step))  # type: ignore[operator]
    name = {"layer": "kv_layer", "kv_len_tensor": "kv_lens"}.get(argument, argument)
    with pytest.raises(ValueError, match=f"^({name}|kv_layer): "):
        decode_attention(step.q, step.layer, step.page_table, step.kv_len_tensor, 0.3)
