"""What the native engine does between its products, in both builds, against the torch forms in float64."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int32, c_int64, c_void_p

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from slipstream.kernels.cpu.c_interface import KvShape
from slipstream.kernels.cpu.native_library import NEEDED_FLAGS, fits, open_library
from slipstream.kernels.elementwise.rms_norm import rms_norm
from slipstream.kernels.elementwise.rotary import rotary_angles, rotary_embedding
from slipstream.kernels.pages.kv_pages import kv_rows, write_kv
from slipstream.kernels.pages.quantized_kv import codes_and_scales, head_bytes, quantize_kv

SCALARS = {torch.float32: 0, torch.bfloat16: 1}
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3}  # half a step of bfloat16 is 2e-3
FORMATS = {None: 0, torch.int8: 1, torch.float8_e4m3fn: 2}
EPS = 1e-5
DIMS = [8, 20, 64, 100, 768]


@pytest.fixture(params=NEEDED_FLAGS, scope="module")
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    if not fits(request.param):
        pytest.skip(f"the processor has no {request.param}")
    try:
        library = open_library(request.param)
    except OSError as error:
        pytest.skip(f"not built: {error}")
    pointer = c_void_p
    for name, arguments in {
        "rms_norm": [c_int32, pointer, pointer, pointer, pointer, c_int32, c_int32, c_float],
        "rotary_table": [pointer, pointer, c_int32, c_float, pointer, pointer, c_int32],
        "write_keys_values": [c_int32, pointer, c_int32, *[pointer] * 4, c_float, pointer, pointer, c_int32],
        "add_rms_norm": [pointer, pointer, pointer, c_int32, c_int32, c_float],
        "embed": [c_int32, pointer, pointer, c_int32, c_int32, c_float, pointer, c_int32, c_int32],
        "argmax": [pointer, c_int64, c_int32, pointer, pointer, c_int32],
    }.items():
        function = getattr(library, f"slipstream_{name}")
        function.argtypes = arguments
        function.restype = None
    return library


def assert_near(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("dim", DIMS)
def test_rms_norm(library: ctypes.CDLL, dtype: torch.dtype, dim: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, dim) * 3, torch.randn(dim)
    out = torch.empty(5, dim, dtype=dtype)
    library.slipstream_rms_norm(SCALARS[dtype], x.data_ptr(), None, weight.data_ptr(), out.data_ptr(), len(x), dim, EPS)
    assert_near(out, rms_norm(x.double(), weight.double(), EPS))


@pytest.mark.parametrize("dim", DIMS)
def test_rms_norm_that_is_added(library: ctypes.CDLL, dim: int) -> None:
    torch.manual_seed(0)
    x, weight, stream = torch.randn(5, dim) * 3, torch.randn(dim), torch.randn(5, dim)
    out = stream.clone()
    library.slipstream_add_rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), len(x), dim, EPS)
    assert_near(out, stream.double() + rms_norm(x.double(), weight.double(), EPS))


def test_rms_norm_of_some_rows(library: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    x, weight, rows = torch.randn(6, 40), torch.randn(40), torch.tensor([5, 0, 5], dtype=torch.int32)
    out = torch.empty(3, 40)
    library.slipstream_rms_norm(0, x.data_ptr(), rows.data_ptr(), weight.data_ptr(), out.data_ptr(), 3, 40, EPS)
    assert_near(out, rms_norm(x[rows].double(), weight.double(), EPS))


def test_rotary_angles_are_exact_at_late_positions(library: ctypes.CDLL) -> None:
    positions = torch.tensor([0, 1, 77, 4095, 131071], dtype=torch.int32)
    inv_freq = 1.0 / 10000 ** (torch.arange(12) / 12)
    table = torch.empty(2, len(positions), len(inv_freq))
    library.slipstream_rotary_table(
        positions.data_ptr(), inv_freq.data_ptr(), len(inv_freq), 1.25, table[0].data_ptr(), table[1].data_ptr(), 5
    )
    cos, signed_sin = rotary_angles(positions, inv_freq, 1.25, torch.float32)
    half = len(inv_freq)
    torch.testing.assert_close(table[0], cos[:, 0, :half], rtol=0, atol=3e-7)
    torch.testing.assert_close(table[1], signed_sin[:, 0, half:], rtol=0, atol=3e-7)


class Tokens:
    """Rows of q, k and v for a layer of pages, and where they go."""

    def __init__(self, dtype: torch.dtype, head_dim: int, page_tokens: int, heads: int = 6, kv_heads: int = 2) -> None:
        torch.manual_seed(0)
        self.num_tokens, num_pages = 9, 4
        self.heads, self.kv_heads, self.head_dim, self.page_tokens = heads, kv_heads, head_dim, page_tokens
        self.qkv = torch.randn(self.num_tokens, heads + 2 * kv_heads, head_dim).to(dtype)
        self.cos, self.sin = torch.randn(2, self.num_tokens, head_dim // 2)
        self.norm = torch.randn(heads + kv_heads, head_dim)
        self.slots = torch.randperm(num_pages * page_tokens)[: self.num_tokens].to(torch.int32)
        self.pool_shape = (num_pages, kv_heads, 2, page_tokens, head_dim)

    def kv_shape(self, codes: torch.dtype | None) -> KvShape:
        run = head_bytes(self.page_tokens, self.head_dim)
        if codes is None:
            run = 2 * self.page_tokens * self.head_dim * self.qkv.dtype.itemsize
        widths = (self.head_dim, self.head_dim)
        return KvShape(self.kv_heads, *widths, self.page_tokens, FORMATS[codes], 1, run, self.kv_heads * run)

    def expected(self, with_norm: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values in float64."""
        qk, values = self.qkv.double().tensor_split((self.heads + self.kv_heads,), dim=1)
        if with_norm:
            qk = rms_norm(qk, self.norm.double(), EPS)
        cos, sin = self.cos.double()[:, None], self.sin.double()[:, None]
        qk = rotary_embedding(qk, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
        return qk[:, : self.heads], qk[:, self.heads :], values

    def write(self, library: ctypes.CDLL, pool: Tensor, with_norm: bool) -> Tensor:
        """Fills the pages; returns the queries."""
        qkv = self.qkv.clone()
        codes = pool.dtype if pool.dtype in FORMATS else None
        library.slipstream_write_keys_values(
            SCALARS[qkv.dtype],
            byref(self.kv_shape(codes)),
            self.heads,
            qkv.data_ptr(),
            self.cos.data_ptr(),
            self.sin.data_ptr(),
            self.norm.data_ptr() if with_norm else None,
            EPS,
            self.slots.data_ptr(),
            pool.data_ptr(),
            self.num_tokens,
        )
        return qkv[:, : self.heads]


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 256])
def test_queries_and_keys_are_rotated_and_only_the_slots_written(
    library: ctypes.CDLL, dtype: torch.dtype, head_dim: int, with_norm: bool
) -> None:
    tokens = Tokens(dtype, head_dim, page_tokens=5)
    pool = torch.full(tokens.pool_shape, float("nan"), dtype=dtype)
    queries = tokens.write(library, pool, with_norm)
    expected_queries, keys, values = tokens.expected(with_norm)
    expected = torch.full(tokens.pool_shape, float("nan"), dtype=torch.float64)
    write_kv(expected, keys, values, kv_rows(tokens.slots.long(), tokens.kv_heads, tokens.page_tokens))
    tolerance = 4 * TOLERANCE[dtype]
    torch.testing.assert_close(queries.double(), expected_queries, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(pool.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("codes", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("head_dim", [24, 64])
def test_codes_and_scales_are_those_of_the_torch_form(
    library: ctypes.CDLL, dtype: torch.dtype, codes: torch.dtype, head_dim: int
) -> None:
    tokens = Tokens(dtype, head_dim, page_tokens=8)
    tokens.cos.fill_(1)  # keys stay as they are: what is compared is the quantisation
    tokens.sin.fill_(0)
    tokens.qkv[0, -1] = 0
    tokens.qkv[1] *= 1e-3
    tokens.qkv[2] *= torch.logspace(-4, 2, head_dim).to(dtype)  # reaches the subnormal codes
    plain = torch.zeros(tokens.pool_shape, dtype=dtype)
    tokens.write(library, plain, with_norm=False)
    size = head_bytes(tokens.page_tokens, head_dim)
    pool = torch.zeros(tokens.pool_shape[0], tokens.kv_heads, size, dtype=torch.uint8).view(codes)
    tokens.write(library, pool, with_norm=False)
    expected_codes, expected_scales = quantize_kv(plain, codes)
    page_codes, scales = codes_and_scales(pool, head_dim)
    written = scales != 0
    assert written.sum() == 2 * tokens.num_tokens * tokens.kv_heads
    torch.testing.assert_close(scales[written], expected_scales[written], rtol=1e-7, atol=0)
    assert torch.equal(page_codes.float()[written], expected_codes.float()[written])


@pytest.mark.parametrize("codes", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_key_that_is_no_number_has_a_scale_that_is_none(
    library: ctypes.CDLL, codes: torch.dtype, value: float
) -> None:
    tokens = Tokens(torch.bfloat16, 24, page_tokens=8)
    tokens.qkv[3, tokens.heads, 17] = value
    size = head_bytes(tokens.page_tokens, 24)
    pool = torch.zeros(tokens.pool_shape[0], tokens.kv_heads, size, dtype=torch.uint8).view(codes)
    tokens.write(library, pool, with_norm=False)
    _, scales = codes_and_scales(pool, 24)
    page, offset = divmod(int(tokens.slots[3]), 8)
    assert not scales[page, 0, 0, offset].isfinite()
    assert scales.isfinite().sum() == scales.numel() - 1


@pytest.mark.parametrize("dtype", SCALARS)
def test_ids_of_other_ranks_embed_as_zeros(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    table = torch.randn(10, 20).to(dtype)
    token_ids = torch.tensor([29, 30, 39, 40, 0, 2**31 - 1], dtype=torch.int32)
    out = torch.full((6, 20), float("nan"))
    library.slipstream_embed(SCALARS[dtype], table.data_ptr(), token_ids.data_ptr(), 30, 10, 1.5, out.data_ptr(), 6, 20)
    expected = torch.zeros(6, 20)
    expected[1], expected[2] = table[0].float() * 1.5, table[9].float() * 1.5
    assert torch.equal(out, expected)


def best(library: ctypes.CDLL, logits: Tensor, count: int) -> tuple[list[int], list[int]]:
    token_ids = torch.empty(len(logits), dtype=torch.int32)
    sound = torch.empty(len(logits), dtype=torch.uint8)
    library.slipstream_argmax(
        logits.data_ptr(), logits.stride(0), count, token_ids.data_ptr(), sound.data_ptr(), len(logits)
    )
    return token_ids.tolist(), sound.tolist()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(1, 300), levels=st.integers(1, 50), seed=st.integers(0, 99))
def test_the_best_token_is_the_first_of_the_largest(library: ctypes.CDLL, count: int, levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-levels, levels, (4, count + 3), generator=generator).float()
    logits[:, count:] = float("nan")  # padding of the vocabulary is not looked at
    logits[1, : count // 2] = float("-inf")
    expected = [row[:count].tolist().index(row[:count].max()) for row in logits]
    assert best(library, logits, count) == (expected, [1] * 4)


@pytest.mark.parametrize("position", [0, 63, 64, 199])
def test_rows_without_a_finite_maximum_or_with_a_nan_have_no_token(library: ctypes.CDLL, position: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 200)
    logits[0, position] = float("nan")
    logits[1, position] = float("inf")
    logits[2] = float("-inf")
    token_ids, sound = best(library, logits, 200)
    assert sound == [0, 0, 0, 1]
    assert token_ids[3] == int(logits[3].argmax())
