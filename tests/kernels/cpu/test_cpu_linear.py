"""The native linear products, in both builds, against float64 torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.cpu.c_interface import SourceRows
from slipstream.kernels.cpu.native_library import NEEDED_FLAGS, fits, open_library
from slipstream.kernels.quantization.quantized_weight import (
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    dequantize,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
)

SCALARS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
F32, BF16, INT8, FP8, INT4 = range(5)
STORE, STORE_F32, ADD_RESIDUAL, SILU_MUL, GELU_MUL = range(5)
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 5e-3}  # of the largest result; bfloat16 results are rounded


class LinearCall(Structure):
    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("type", c_int32),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("rows", c_int32),
        ("epilogue", c_int32),
        ("y", c_void_p),
        ("y_stride", c_int64),
        ("tiles_ahead", c_int32),
        ("alpha", c_float),
        ("limit", c_float),
        ("after", c_void_p),
    )


def aligned(num_bytes: int) -> Tensor:
    memory = torch.zeros(num_bytes + 64, dtype=torch.uint8)
    begin = -memory.data_ptr() % 64
    return memory[begin : begin + num_bytes]


@dataclass
class Packed:
    shape: ctypes.Array[c_int32]
    data: Tensor
    outputs: int


class Library:
    def __init__(self, variant: str) -> None:
        self.calls = open_library(variant)
        self.calls.slipstream_linear_packed_bytes.argtypes = [POINTER(c_int32)]
        self.calls.slipstream_linear_packed_bytes.restype = c_int64
        self.calls.slipstream_linear_pack.argtypes = [POINTER(c_int32), POINTER(SourceRows), c_int32, c_void_p]
        self.calls.slipstream_linear_pack.restype = None
        self.calls.slipstream_linear_scratch_bytes.restype = c_int64
        self.calls.slipstream_linear.argtypes = [
            POINTER(c_int32),
            c_void_p,
            c_int32,
            POINTER(LinearCall),
            c_int32,
            c_void_p,
        ]
        self.calls.slipstream_linear.restype = None
        self.calls.slipstream_set_num_threads.argtypes = [c_int32]
        self.calls.slipstream_set_num_threads(2)
        self.scratch = aligned(2 * self.calls.slipstream_linear_scratch_bytes())

    def pack(
        self, kind: int, sources: Sequence[SourceRows], inputs: int, *, paired: bool = False, group: int = 0
    ) -> Packed:
        outputs = sum(source.outputs for source in sources)
        shape = (c_int32 * 5)(kind, paired, outputs, inputs, group)
        data = aligned(self.calls.slipstream_linear_packed_bytes(shape))
        self.calls.slipstream_linear_pack(shape, (SourceRows * len(sources))(*sources), len(sources), data.data_ptr())
        return Packed(shape, data, outputs)

    def linear(
        self, packed: Packed, x: Tensor, epilogue: int = STORE, y: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        if y is None:
            outputs = packed.outputs // 2 if epilogue >= SILU_MUL else packed.outputs
            y = torch.zeros(
                len(x), outputs, dtype=x.dtype if epilogue in (STORE, SILU_MUL, GELU_MUL) else torch.float32
            )
        call = LinearCall(
            bias=None if bias is None else bias.data_ptr(),
            type=SCALARS[x.dtype],
            x=x.data_ptr(),
            x_stride=x.stride(0),
            rows=len(x),
            epilogue=epilogue,
            y=y.data_ptr(),
            y_stride=y.stride(0),
            tiles_ahead=2,
        )
        self.calls.slipstream_linear(packed.shape, packed.data.data_ptr(), 1, byref(call), 1, self.scratch.data_ptr())
        return y


@pytest.fixture(params=NEEDED_FLAGS, scope="module")
def library(request: pytest.FixtureRequest) -> Library:
    if not fits(request.param):
        pytest.skip(f"the processor has no {request.param}")
    try:
        return Library(request.param)
    except OSError as error:
        pytest.skip(f"not built: {error}")


def plain_rows(weight: Tensor) -> SourceRows:
    return SourceRows(
        outputs=len(weight), values=weight.data_ptr(), stride=weight.stride(0), values_type=SCALARS[weight.dtype]
    )


def quantized_rows(weight: Fp8Weight | Int8Weight | Int4Weight) -> SourceRows:
    scales = weight.scales if weight.scales.dim() == 2 else weight.scales[:, None]
    rows = SourceRows(
        outputs=weight.shape[0],
        values=weight.codes.data_ptr(),
        stride=weight.codes.stride(0),
        scales=scales.data_ptr(),
        scales_type=SCALARS[scales.dtype],
        scales_stride=scales.stride(0),
        scale_outputs=weight.block[0] if isinstance(weight, Fp8Weight) else 1,
    )
    if isinstance(weight, Int4Weight):
        rows.zeros = weight.zeros.data_ptr()
        rows.zeros_stride = weight.zeros.stride(0)
    return rows


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result = x.double() @ weight.double().T
    return result if bias is None else result + bias.double()


def check(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error <= tolerance, f"off by {error:.1e} of the largest result"


Dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])


@Dtype
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 32, 150])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (100, 33), (1, 1), (200, 2500)])
def test_products_of_ragged_shapes(library: Library, dtype: torch.dtype, rows: int, outputs: int, inputs: int) -> None:
    weight, x = randn(outputs, inputs, dtype=dtype), randn(rows, inputs, dtype=dtype, seed=1)
    packed = library.pack(SCALARS[dtype], [plain_rows(weight)], inputs)
    check(library.linear(packed, x), product(x, weight), TOLERANCE[dtype])
    check(library.linear(packed, x, STORE_F32), product(x, weight), TOLERANCE[torch.float32])


@Dtype
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_sources_of_any_type_and_stride_are_joined(library: Library, dtype: torch.dtype, source: torch.dtype) -> None:
    parts = [randn(outputs, 90, dtype=source, seed=outputs)[:, 5:75] for outputs in (50, 1, 90)]
    packed = library.pack(SCALARS[dtype], [plain_rows(part) for part in parts], 70)
    x = randn(5, 70, dtype=dtype)
    expected = product(x, torch.cat(parts).to(dtype))
    check(library.linear(packed, x, STORE_F32), expected, TOLERANCE[torch.float32])


@Dtype
def test_rows_keep_to_their_strides(library: Library, dtype: torch.dtype) -> None:
    weight, wide_x = randn(70, 48, dtype=dtype), randn(9, 100, dtype=dtype, seed=1)
    x, wide_y = wide_x[:, 20:68], torch.full((9, 90), 7.0, dtype=dtype)
    library.linear(library.pack(SCALARS[dtype], [plain_rows(weight)], 48), x, y=wide_y[:, 10:80])
    check(wide_y[:, 10:80], product(x, weight), TOLERANCE[dtype])
    assert bool((wide_y[:, :10] == 7).all() and (wide_y[:, 80:] == 7).all())


@Dtype
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_residual_is_added_to(library: Library, dtype: torch.dtype, with_bias: bool) -> None:
    weight, x = randn(100, 64, dtype=dtype), randn(8, 64, dtype=dtype, seed=1)
    bias = randn(100, seed=2) if with_bias else None
    residual = randn(8, 100, seed=3)
    y = residual.clone()
    library.linear(library.pack(SCALARS[dtype], [plain_rows(weight)], 64), x, ADD_RESIDUAL, y, bias)
    check(y, residual.double() + product(x, weight, bias), TOLERANCE[torch.float32])


@Dtype
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("half", [32, 77, 160])
def test_gate_and_up_become_one_result(library: Library, dtype: torch.dtype, with_bias: bool, half: int) -> None:
    gate, up = randn(half, 40, dtype=dtype), randn(half, 40, dtype=dtype, seed=1)
    x = randn(7, 40, dtype=dtype, seed=2)
    bias = randn(2 * half, seed=3) if with_bias else None
    packed = library.pack(SCALARS[dtype], [plain_rows(gate), plain_rows(up)], 40, paired=True)
    gate_out, up_out = product(x, torch.cat([gate, up]), bias).split(half, dim=1)
    check(library.linear(packed, x, SILU_MUL, bias=bias), F.silu(gate_out) * up_out, TOLERANCE[dtype])
    gelu = F.gelu(gate_out, approximate="tanh")
    check(library.linear(packed, x, GELU_MUL, bias=bias), gelu * up_out, TOLERANCE[dtype])


@Dtype
def test_gates_far_from_zero_neither_overflow_nor_let_through(library: Library, dtype: torch.dtype) -> None:
    one, x = torch.ones(1, 1, dtype=dtype), torch.tensor([[-200.0], [-89.0], [0.0], [89.0], [200.0]], dtype=dtype)
    packed = library.pack(SCALARS[dtype], [plain_rows(one), plain_rows(one)], 1, paired=True)
    assert library.linear(packed, x, SILU_MUL)[:, 0].tolist() == pytest.approx([0, 0, 0, 89**2, 200**2], rel=4e-3)


def quantized(kind: str, weight: Tensor) -> tuple[int, int, Fp8Weight | Int8Weight | Int4Weight]:
    """(kind, group, weight)"""
    match kind.split("-"):
        case ["int8"]:
            return INT8, 0, quantize_int8(weight)
        case ["fp8"]:
            return FP8, 0, quantize_fp8(weight)
        case ["fp8", outputs, inputs]:
            return FP8, int(inputs), quantize_fp8(weight, (int(outputs), int(inputs)))
        case [_, "channel"]:
            return INT4, 0, quantize_int4(weight, weight.shape[1])
        case [_, group]:
            return INT4, int(group), quantize_int4(weight, int(group))
    raise ValueError(kind)


QUANTIZED = ["int8", "fp8", "fp8-128-128", "fp8-48-24", "int4-32", "int4-64", "int4-128", "int4-channel"]


@Dtype
@pytest.mark.parametrize("rows", [1, 8, 140])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_products_with_quantized_weights(library: Library, dtype: torch.dtype, rows: int, kind: str) -> None:
    number, group, weight = quantized(kind, randn(150, 640))
    x = randn(rows, 640, dtype=dtype, seed=1)
    packed = library.pack(number, [quantized_rows(weight)], 640, group=group)
    expected = product(x, dequantize(weight, torch.float64))
    check(library.linear(packed, x, STORE_F32), expected, TOLERANCE[torch.float32])


@Dtype
@pytest.mark.parametrize("kind", ["int8", "fp8", "fp8-128-128"])
def test_quantized_weights_of_ragged_inputs(library: Library, dtype: torch.dtype, kind: str) -> None:
    number, group, weight = quantized(kind, randn(70, 333))
    x = randn(7, 333, dtype=dtype, seed=1)
    packed = library.pack(number, [quantized_rows(weight)], 333, group=group)
    expected = product(x, dequantize(weight, torch.float64))
    check(library.linear(packed, x, STORE_F32), expected, TOLERANCE[torch.float32])


@Dtype
def test_every_code_has_its_value(library: Library, dtype: torch.dtype) -> None:
    fp8 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(128, 2)
    int8 = torch.arange(-127, 129).clamp(max=127).to(torch.int8).reshape(128, 2)
    x = torch.eye(2, dtype=dtype)
    for kind, codes in ((FP8, fp8), (INT8, int8)):
        weight = Fp8Weight(codes, torch.ones(128, 1), (1, 2)) if kind == FP8 else Int8Weight(codes, torch.ones(128))
        y = library.linear(library.pack(kind, [quantized_rows(weight)], 2), x, STORE_F32)
        if kind == FP8:
            assert bool(y.T[codes.float().isnan().any(dim=1)].isnan().any(dim=1).all())
        valid = ~codes.float().isnan().any(dim=1)
        assert torch.equal(y.T[valid], codes.float()[valid])


@Dtype
def test_quantized_gate_and_up_with_sources_that_begin_within_a_block(library: Library, dtype: torch.dtype) -> None:
    whole = quantize_fp8(randn(256, 128), (64, 32))
    dense = dequantize(whole, torch.float64)[96:224]
    source = quantized_rows(whole)
    source.outputs, source.values = 128, whole.codes[96:].data_ptr()
    source.scales, source.scale_first = whole.scales[1:].data_ptr(), 32
    packed = library.pack(FP8, [source], 128, paired=True, group=32)
    x = randn(6, 128, dtype=dtype, seed=1)
    gate, up = product(x, dense).split(64, dim=1)
    check(library.linear(packed, x, SILU_MUL), F.silu(gate) * up, TOLERANCE[dtype])


@Dtype
@pytest.mark.parametrize("kind", ["plain", "int8", "fp8-128-128", "int4-64"])
@pytest.mark.parametrize("inputs", [256, 2304])
def test_a_row_does_not_depend_on_the_rows_beside_it(
    library: Library, dtype: torch.dtype, kind: str, inputs: int
) -> None:
    dense = randn(130, inputs, dtype=dtype)
    if kind == "plain":
        packed = library.pack(SCALARS[dtype], [plain_rows(dense)], inputs)
    else:
        number, group, weight = quantized(kind, dense)
        packed = library.pack(number, [quantized_rows(weight)], inputs, group=group)
    x = randn(300, inputs, dtype=dtype, seed=1)
    together = library.linear(packed, x, STORE_F32)
    few = ((0, 1), (299, 300), (3, 5), (10, 13), (20, 24), (31, 36), (60, 66), (100, 107), (110, 118))
    for begin, end in (*few, (120, 131), (140, 159), (40, 76), (40, 77), (7, 150)):
        assert torch.equal(library.linear(packed, x[begin:end], STORE_F32), together[begin:end])


def test_no_rows_are_no_work(library: Library) -> None:
    packed = library.pack(F32, [plain_rows(randn(64, 64))], 64)
    assert library.linear(packed, torch.zeros(0, 64)).shape == (0, 64)
