"""Attention of the native library on plain tensors: the arguments of its calls, against the torch reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.kernels.attention.paged_attention import paged_attention, plan_attention
from slipstream.kernels.cpu.native_attention import NativeAttention, PageForm
from slipstream.kernels.cpu.native_library import native_library
from slipstream.workers.models.interface.step_arrays import SequenceSlice, StepArrays

pytestmark = pytest.mark.skipif(native_library() is None, reason="no native kernels")

PAGE_TOKENS, HEADS = 8, 6
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
STEPS = [{0: (0, 30), 1: (0, 5)}, {0: (30, 31), 1: (5, 47), 2: (0, 1)}, {0: (31, 32), 1: (47, 48), 2: (1, 20)}]


class Sequences:
    """Random queries, keys and values of some sequences, which come in steps, and their pages."""

    def __init__(self, form: PageForm) -> None:
        torch.manual_seed(0)
        self.form = form
        self.q = torch.randn(3, 50, HEADS, form.key_dim).to(form.dtype)
        self.keys = torch.randn(3, 50, form.num_kv_heads, form.key_dim).to(form.dtype)
        self.values = torch.randn(3, 50, form.num_kv_heads, form.value_dim).to(form.dtype)
        self.page_ids = torch.randperm(24).view(3, 8).numpy().astype(np.int32)
        numbers = form.page_stride // form.dtype.itemsize
        self.pages = torch.full((24, numbers), float("nan"), dtype=form.dtype)

    def arrays(self, step: dict[int, tuple[int, int]]) -> StepArrays:
        slices = []
        for seq, (start, end) in step.items():
            page_ids = self.page_ids[seq, : -(-end // PAGE_TOKENS)]
            slices.append(SequenceSlice(start, (0,) * (end - start), page_ids.tobytes(), True))
        return StepArrays.build(slices, PAGE_TOKENS)

    def rows(self, x: Tensor, step: dict[int, tuple[int, int]]) -> Tensor:
        return torch.cat([x[seq, start:end] for seq, (start, end) in step.items()])

    def expected(
        self,
        step: dict[int, tuple[int, int]],
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """By the reference, in dense pages that have everything."""
        form = self.form
        runs = torch.cat(
            [
                x.transpose(1, 2).reshape(3, form.num_kv_heads, -1, PAGE_TOKENS * x.shape[-1])
                for x in (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 6)) for x in (self.keys, self.values))
            ],
            dim=-1,
        )  # [seqs, kv_heads, pages, run]
        layer = runs.transpose(1, 2).flatten(0, 1).contiguous()
        table = torch.arange(21).view(3, 7)[list(step)]
        plan = plan_attention(
            [end - start for start, end in step.values()],
            [end for _, end in step.values()],
            table,
            num_kv_heads=form.num_kv_heads,
            page_tokens=PAGE_TOKENS,
            window=window,
            dtype=form.dtype,
            device=torch.device("cpu"),
        )
        q = self.rows(self.q, step)
        return paged_attention(q, layer, plan, scale, softcap=softcap, sinks=sinks, value_dim=form.value_dim)


def begin(attention: NativeAttention, arrays: StepArrays) -> None:
    attention.begin_step(arrays.query_starts, arrays.kv_lens, arrays.page_table, arrays.slots)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_steps_of_chunks_and_tokens_equal_the_reference(
    dtype: torch.dtype, window: int | None, softcap: float | None, has_sinks: bool
) -> None:
    form = PageForm(2, 24, 16, PAGE_TOKENS, dtype, unit_bytes=4096, page_bytes=10240)
    sequences = Sequences(form)
    sinks = torch.linspace(-3, 3, HEADS) if has_sinks else None
    attention = NativeAttention(native_library(), form, num_heads=HEADS, scale=0.3, window=window, softcap=softcap)
    for step in STEPS:
        begin(attention, sequences.arrays(step))
        attention.write(sequences.rows(sequences.keys, step), sequences.rows(sequences.values, step), sequences.pages)
        out = attention.attend(sequences.rows(sequences.q, step), sequences.pages, sinks)
        expected = sequences.expected(step, 0.3, window, softcap, sinks)
        torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_heads_may_lie_apart_as_in_a_transposed_tensor(dtype: torch.dtype) -> None:
    form = PageForm(2, 32, 32, PAGE_TOKENS, dtype)
    sequences, step = Sequences(form), STEPS[0]
    arrays = sequences.arrays(step)
    attention = NativeAttention(native_library(), form, num_heads=HEADS, scale=0.2)
    begin(attention, arrays)
    found = []
    for arrange in (lambda x: x, lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)):
        q, keys, values = (arrange(sequences.rows(x, step)) for x in (sequences.q, sequences.keys, sequences.values))
        pages = sequences.pages.clone()
        attention.write(keys, values, pages)
        found.append((attention.attend(q, pages), pages.view(torch.uint8)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_long_prompts_are_written_by_all_threads() -> None:
    form = PageForm(2, 16, 8, PAGE_TOKENS, torch.float32)
    keys, values = torch.randn(100, 2, 16), torch.randn(100, 2, 8)
    slots = torch.randperm(120)[:100].to(torch.int32).numpy()
    attention = NativeAttention(native_library(), form, num_heads=2, scale=1.0)
    numbers = np.array([0, 100], np.int32)
    attention.begin_step(numbers, numbers[1:], np.arange(15, dtype=np.int32)[None], slots)
    pages = torch.zeros(15, 2, PAGE_TOKENS * 24)
    attention.write(keys, values, pages)
    where, offset = slots // PAGE_TOKENS, slots % PAGE_TOKENS
    split = PAGE_TOKENS * 16
    assert torch.equal(pages[..., :split].unflatten(-1, (PAGE_TOKENS, 16))[where, :, offset], keys)
    assert torch.equal(pages[..., split:].unflatten(-1, (PAGE_TOKENS, 8))[where, :, offset], values)
    assert pages.count_nonzero() == keys.numel() + values.numel()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"key_dim": 20}, "key_dim: must be a multiple of 8"),
        ({"value_dim": 1024}, "value_dim"),
        ({"dtype": torch.float16}, "dtype"),
        ({"unit_heads": 3}, "units of 3"),
        ({"unit_bytes": 64}, "unit_bytes: 64"),
        ({"page_bytes": 64}, "page_bytes: 64"),
    ],
)
def test_pages_that_the_kernels_cannot_read_are_refused(fields: dict[str, object], match: str) -> None:
    form: dict[str, object] = {"num_kv_heads": 2, "key_dim": 16, "value_dim": 16, "page_tokens": 8}
    with pytest.raises(ValueError, match=match):
        PageForm(**({"dtype": torch.float32} | form | fields))  # type: ignore[arg-type]


def test_tensors_that_do_not_fit_are_refused_by_name() -> None:
    form = PageForm(2, 16, 16, PAGE_TOKENS, torch.float32)
    sequences = Sequences(form)
    attention = NativeAttention(native_library(), form, num_heads=HEADS, scale=1.0)
    arrays = sequences.arrays(STEPS[0])
    begin(attention, arrays)
    q, keys = torch.zeros(35, HEADS, 16), torch.zeros(35, 2, 16)
    with pytest.raises(ValueError, match="q: must be"):
        attention.attend(q.bfloat16(), sequences.pages)
    with pytest.raises(ValueError, match="keys: must be"):
        attention.write(keys[:-1], keys, sequences.pages)
    with pytest.raises(ValueError, match="sinks: must be"):
        attention.attend(q, sequences.pages, torch.zeros(2))
    with pytest.raises(ValueError, match="num_heads: 5"):
        NativeAttention(native_library(), form, num_heads=5, scale=1.0)
