"""The native paged attention, in both builds, against plain causal attention in float64."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from slipstream.kernels.cpu.c_interface import AttentionShape, KvShape
from slipstream.kernels.cpu.native_library import NEEDED_FLAGS, fits, open_library
from slipstream.kernels.pages.quantized_kv import dequantize_kv, head_bytes, quantize_kv, write_quantized_kv

SCALARS = {torch.float32: 0, torch.bfloat16: 1}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
FORMATS = {None: 0, torch.int8: 1, torch.float8_e4m3fn: 2}
SEGMENT_KEYS = 1024  # contexts are cut here, whatever the step
OUT_OF_RANGE = 2**30  # an entry of the page table that must not be read


class AttentionBatch(Structure):
    _fields_ = (
        ("num_seqs", c_int32),
        ("query_starts", c_void_p),
        ("kv_lens", c_void_p),
        ("page_table", c_void_p),
        ("page_table_stride", c_int64),
    )


class AttentionCall(Structure):
    _fields_ = (
        ("shape", AttentionShape),
        ("batch", AttentionBatch),
        ("type", c_int32),
        ("num_layers", c_int32),
        ("q", c_void_p),
        ("q_stride", c_int64),
        ("kv", c_void_p),
        ("layer_bytes", c_int64),
        ("sinks", c_void_p),
        ("out", c_void_p),
    )


@pytest.fixture(params=NEEDED_FLAGS, scope="module")
def library(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    if not fits(request.param):
        pytest.skip(f"the processor has no {request.param}")
    try:
        library = open_library(request.param)
    except OSError as error:
        pytest.skip(f"not built: {error}")
    library.slipstream_attend.argtypes = [POINTER(AttentionCall)]
    library.slipstream_attend.restype = None
    before = library.slipstream_num_threads()
    library.slipstream_set_num_threads(2)
    yield library
    library.slipstream_set_num_threads(before)


@dataclass(frozen=True)
class Form:
    """What the sequences of a test have in common."""

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    page_tokens: int = 16
    dtype: torch.dtype = torch.float32
    codes: torch.dtype | None = None  # of the pages, where they are quantised
    window: int | None = None
    chunk: int | None = None
    value_dim: int | None = None  # of a head, where it is not head_dim
    unit_heads: int = 1  # KV heads that lie one behind the other
    unit_gap: int = 0  # bytes behind those in the page
    softcap: float | None = None
    has_sinks: bool = False
    scale_factor: float = 1.0

    @property
    def scale(self) -> float:
        return self.scale_factor * self.head_dim**-0.5

    @property
    def value_width(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def sinks(self) -> Tensor:
        """[heads]: some count more than all keys, some nothing."""
        return torch.linspace(-30, 6, self.heads)

    @property
    def head_bytes(self) -> int:
        if self.codes is not None:
            return head_bytes(self.page_tokens, self.head_dim)
        return self.page_tokens * (self.head_dim + self.value_width) * self.dtype.itemsize

    @property
    def unit_bytes(self) -> int:
        return self.unit_heads * self.head_bytes + self.unit_gap

    @property
    def page_bytes(self) -> int:
        return self.kv_heads // self.unit_heads * self.unit_bytes

    @property
    def kv_shape(self) -> KvShape:
        return KvShape(
            self.kv_heads,
            self.head_dim,
            self.value_width,
            self.page_tokens,
            FORMATS[self.codes],
            self.unit_heads,
            self.unit_bytes,
            self.page_bytes,
        )


@dataclass(frozen=True)
class Sequence:
    """Keys and values of all positions [kv_len, kv_heads, head_dim], queries [kv_len, heads, head_dim]. A step computes
    the last `num_queries` of the first `kv_len` positions."""

    keys: Tensor
    values: Tensor
    queries: Tensor
    num_queries: int
    kv_len: int

    @staticmethod
    def random(form: Form, num_queries: int, kv_len: int) -> Sequence:
        keys = torch.randn(kv_len, form.kv_heads, form.head_dim).to(form.dtype)
        values = torch.randn(kv_len, form.kv_heads, form.value_width).to(form.dtype)
        queries = torch.randn(kv_len, form.heads, form.head_dim).to(form.dtype)
        return Sequence(keys, values, queries, num_queries, kv_len)

    @property
    def step_queries(self) -> Tensor:
        return self.queries[self.kv_len - self.num_queries : self.kv_len]

    def expected(self, form: Form) -> Tensor:
        """[num_queries, heads, head_dim] in float64."""
        shared = form.heads // form.kv_heads
        keys, values = (
            as_stored(x[: self.kv_len], form.codes).double().repeat_interleave(shared, dim=1)
            for x in (self.keys, self.values)
        )
        positions = torch.arange(self.kv_len - self.num_queries, self.kv_len)[:, None]
        hidden = torch.arange(self.kv_len) > positions
        if form.window is not None:
            hidden |= torch.arange(self.kv_len) <= positions - form.window
        if form.chunk is not None:
            hidden |= torch.arange(self.kv_len) // form.chunk < positions // form.chunk
        scores = torch.einsum("qhd,khd->hqk", self.step_queries.double(), keys) * form.scale
        if form.softcap is not None:
            scores = form.softcap * (scores / form.softcap).tanh()
        scores = scores.masked_fill(hidden, float("-inf"))
        if form.has_sinks:
            scores = torch.cat((scores, form.sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)), dim=-1)
        weights = scores.softmax(-1)[:, :, : self.kv_len]
        return torch.einsum("hqk,khd->qhd", weights, values)


def as_stored(x: Tensor, codes: torch.dtype | None) -> Tensor:
    return x if codes is None else dequantize_kv(*quantize_kv(x, codes), torch.float32)


def poisoned_pool(form: Form, num_pages: int) -> Tensor:
    """One layer of pages in which every number, or every scale, is nan."""
    if form.codes is None:
        numbers = num_pages * form.page_bytes // form.dtype.itemsize
        return torch.full((num_pages, numbers // num_pages), float("nan"), dtype=form.dtype)
    return torch.full((num_pages, form.kv_heads, form.head_bytes), 0xFF, dtype=torch.uint8).view(form.codes)


def write(form: Form, pool: Tensor, sequence: Sequence, page_ids: Tensor) -> None:
    positions = torch.arange(sequence.kv_len)
    pages, offsets = page_ids[positions // form.page_tokens], positions % form.page_tokens
    keys, values = sequence.keys[: sequence.kv_len], sequence.values[: sequence.kv_len]
    if form.codes is not None:
        write_quantized_kv(pool, keys, values, pages * form.page_tokens + offsets)
        return
    split = form.page_tokens * form.head_dim
    for head in range(form.kv_heads):
        first = head // form.unit_heads * form.unit_bytes + head % form.unit_heads * form.head_bytes
        run = pool[:, first // form.dtype.itemsize :][:, : form.head_bytes // form.dtype.itemsize]
        run[:, :split].view(-1, form.page_tokens, form.head_dim)[pages, offsets] = keys[:, head]
        run[:, split:].unflatten(1, (form.page_tokens, form.value_width))[pages, offsets] = values[:, head]


def attend(library: ctypes.CDLL, form: Form, sequences: list[Sequence], num_layers: int = 1) -> list[Tensor]:
    """The last layer's results of each sequence, in scattered pages; what no query sees is nan or out of range."""
    num_pages = [-(-s.kv_len // form.page_tokens) for s in sequences]
    page_ids = torch.randperm(sum(num_pages) + 2)
    pool = poisoned_pool(form, len(page_ids))
    table = np.full((len(sequences), max(num_pages) + 1), OUT_OF_RANGE, dtype=np.int32)
    for row, sequence, own in zip(table, sequences, page_ids.split([*num_pages, 2])[:-1], strict=True):
        write(form, pool, sequence, own)
        row[: len(own)] = own
        if form.window is not None:  # pages that have left the window of the first query
            row[: max(sequence.kv_len - sequence.num_queries - form.window + 1, 0) // form.page_tokens] = OUT_OF_RANGE
    lens = [s.num_queries for s in sequences]
    query_starts = np.cumsum([0, *lens], dtype=np.int32)
    kv_lens = np.array([s.kv_len for s in sequences], dtype=np.int32)
    qkv_heads = form.heads + 2 * form.kv_heads  # keys and values of the step lie behind the queries
    q = torch.full((sum(lens), qkv_heads, form.head_dim), float("nan"), dtype=form.dtype)
    q[:, : form.heads] = torch.cat([s.step_queries for s in sequences])
    layers = pool.view(torch.uint8).expand(num_layers, *pool.view(torch.uint8).shape).contiguous()
    out = torch.full((num_layers, sum(lens), form.heads, form.value_width), float("nan"), dtype=form.dtype)
    sinks = form.sinks
    batch = AttentionBatch(len(lens), query_starts.ctypes.data, kv_lens.ctypes.data, table.ctypes.data, table.shape[1])
    call = AttentionCall(
        shape=AttentionShape(
            form.kv_shape, form.heads, form.window or 0, form.chunk or 0, form.scale, form.softcap or 0
        ),
        batch=batch,
        type=SCALARS[form.dtype],
        num_layers=num_layers,
        q=q.data_ptr(),
        q_stride=q.stride(0),
        kv=layers.data_ptr(),
        layer_bytes=layers[0].numel(),
        sinks=sinks.data_ptr() if form.has_sinks else None,
        out=out.data_ptr(),
    )
    library.slipstream_attend(byref(call))
    return list(out[-1].split(lens))


def check(library: ctypes.CDLL, form: Form, lens: list[tuple[int, int]], num_layers: int = 1) -> None:
    torch.manual_seed(0)
    sequences = [Sequence.random(form, queries, kv_len) for queries, kv_len in lens]
    for out, sequence in zip(attend(library, form, sequences, num_layers), sequences, strict=True):
        torch.testing.assert_close(
            out.double(), sequence.expected(form), rtol=TOLERANCE[form.dtype], atol=TOLERANCE[form.dtype]
        )


MIXED = [(1, 1), (5, 200), (40, 40), (1, 129), (70, 150)]  # (queries, keys) of each sequence


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_mixed_steps_equal_plain_attention_for_any_group_of_heads(
    library: ctypes.CDLL, dtype: torch.dtype, group: int
) -> None:
    check(library, Form(heads=2 * group, kv_heads=2, dtype=dtype), MIXED)


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 128, 256, 512])
def test_any_head_dim(library: ctypes.CDLL, dtype: torch.dtype, head_dim: int) -> None:
    check(library, Form(head_dim=head_dim, dtype=dtype), MIXED)


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize(("head_dim", "value_dim"), [(192, 128), (24, 16), (16, 40), (8, 512)])
def test_values_of_another_width_than_keys(
    library: ctypes.CDLL, dtype: torch.dtype, head_dim: int, value_dim: int
) -> None:
    check(library, Form(head_dim=head_dim, value_dim=value_dim, dtype=dtype), [*MIXED, (1, 2500)])


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("unit_heads", [1, 2, 4])
def test_units_of_heads_with_gaps_behind_them(library: ctypes.CDLL, dtype: torch.dtype, unit_heads: int) -> None:
    form = Form(heads=8, kv_heads=4, unit_heads=unit_heads, unit_gap=640, dtype=dtype)
    check(library, form, MIXED)
    check(library, replace(form, value_dim=48), MIXED)


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("codes", FORMATS)
@pytest.mark.parametrize("softcap", [0.3, 5.0, 50.0])
def test_scores_are_capped(library: ctypes.CDLL, dtype: torch.dtype, codes: torch.dtype | None, softcap: float) -> None:
    form = Form(dtype=dtype, codes=codes, softcap=softcap, scale_factor=4.0, window=150)
    check(library, form, [*MIXED, (1, 2500)])


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("window", [None, 20])
def test_a_sink_takes_its_part_of_the_weights(library: ctypes.CDLL, dtype: torch.dtype, window: int | None) -> None:
    check(library, Form(dtype=dtype, has_sinks=True, window=window), [*MIXED, (1, 2500), (33, 1300)])


@pytest.mark.parametrize("page_tokens", [1, 5, 8, 32, 100])
def test_any_page_size(library: ctypes.CDLL, page_tokens: int) -> None:
    check(library, Form(page_tokens=page_tokens, dtype=torch.bfloat16), MIXED)


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("window", [1, 16, 50, 64, 1100])
def test_a_window_hides_older_keys_and_their_pages(library: ctypes.CDLL, dtype: torch.dtype, window: int) -> None:
    check(library, Form(window=window, dtype=dtype), [*MIXED, (1, 2500), (33, 1300)])


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("chunk", [1, 50, 64, 1100])
def test_keys_of_other_chunks_are_hidden(library: ctypes.CDLL, dtype: torch.dtype, chunk: int) -> None:
    check(library, Form(chunk=chunk, dtype=dtype), [*MIXED, (1, 2500), (1, 2200), (33, 1300)])
    check(library, Form(chunk=chunk, window=30, dtype=dtype), MIXED)


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("codes", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("head_dim", [24, 64])
def test_quantised_pages_count_with_the_numbers_they_hold(
    library: ctypes.CDLL, dtype: torch.dtype, codes: torch.dtype, head_dim: int
) -> None:
    form = Form(head_dim=head_dim, dtype=dtype, codes=codes)
    check(library, form, [*MIXED, (1, SEGMENT_KEYS + 3)])
    check(library, replace(form, window=20, page_tokens=7), MIXED)


@pytest.mark.parametrize("dtype", SCALARS)
def test_long_contexts_come_together_from_their_parts_in_every_layer(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    lens = [(1, SEGMENT_KEYS), (1, SEGMENT_KEYS + 1), (3, 3 * SEGMENT_KEYS + 100), (40, 2 * SEGMENT_KEYS + 7)]
    check(library, Form(dtype=dtype), lens, num_layers=3)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_ragged_steps(library: ctypes.CDLL, data: st.DataObject) -> None:
    form = Form(
        heads=data.draw(st.sampled_from([1, 2, 3, 5])) * 2,
        kv_heads=data.draw(st.sampled_from([1, 2])),
        head_dim=8 * data.draw(st.integers(1, 12)),
        page_tokens=data.draw(st.integers(1, 40)),
        dtype=data.draw(st.sampled_from(list(SCALARS))),
        codes=data.draw(st.sampled_from(list(FORMATS))),
        window=data.draw(st.none() | st.integers(1, 300)),
    )
    kv_lens = data.draw(st.lists(st.integers(1, 260), min_size=1, max_size=5))
    check(library, form, [(data.draw(st.sampled_from([1, n, (n + 1) // 2])), n) for n in kv_lens])


@pytest.mark.parametrize("codes", FORMATS)
@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("window", [None, 700])
def test_a_row_is_the_same_bits_alone_in_a_batch_and_in_any_chunk(
    library: ctypes.CDLL, dtype: torch.dtype, codes: torch.dtype | None, window: int | None
) -> None:
    torch.manual_seed(0)
    form = Form(heads=6, kv_heads=2, head_dim=64, dtype=dtype, codes=codes, window=window)
    whole = Sequence.random(form, 1300, 1300)
    others = [Sequence.random(form, queries, kv_len) for queries, kv_len in [(1, 2100), (7, 300), (1, 17)]]
    (prefilled,) = attend(library, form, [whole])
    for num_queries, kv_len in [
        (1, 1),
        (1, 64),
        (1, 65),
        (1, 700),
        (1, 1024),
        (1, 1025),
        (1, 1300),
        (5, 1026),
        (100, 1100),
    ]:
        part = replace(whole, num_queries=num_queries, kv_len=kv_len)
        (alone,) = attend(library, form, [part])
        together = attend(library, form, [*others, part, *others])[len(others)]
        assert torch.equal(alone, prefilled[kv_len - num_queries : kv_len])
        assert torch.equal(together, alone)


def test_as_near_to_the_truth_as_torch_in_bfloat16(library: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    form = Form(head_dim=64, heads=4, kv_heads=4, dtype=torch.bfloat16)
    sequence = Sequence.random(form, 256, 256)
    (out,) = attend(library, form, [sequence])
    q, k, v = (x.transpose(0, 1)[None] for x in (sequence.queries, sequence.keys, sequence.values))
    torch_out = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)
    expected = sequence.expected(form)
    ours, theirs = ((x.double() - expected).square().mean().sqrt() for x in (out, torch_out))
    assert ours <= 1.02 * theirs


@pytest.mark.parametrize("dtype", SCALARS)
def test_scores_far_apart_neither_overflow_nor_vanish(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    form = Form(dtype=dtype)
    sequence = Sequence.random(form, 3, 200)
    sequence.queries.mul_(1000)
    (out,) = attend(library, form, [sequence])
    assert out.isfinite().all()
    if dtype == torch.float32:  # where two scores nearly tie, rounding decides
        torch.testing.assert_close(out.double(), sequence.expected(form), rtol=1e-3, atol=1e-3)


def test_a_key_that_is_no_number_spoils_the_queries_that_see_it_and_no_other_sequence(library: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    form = Form(dtype=torch.bfloat16)
    sick, healthy = Sequence.random(form, 1, 100), Sequence.random(form, 1, 100)
    sick.keys[50] = float("nan")
    spoilt, clean = attend(library, form, [sick, healthy])
    assert spoilt.isnan().all()
    assert torch.equal(clean, attend(library, form, [healthy])[0])
