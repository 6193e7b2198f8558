"""Quantised weights against packers written out bit by bit, as the libraries store them, and against known values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipstream.kernels.quantization.quantized_checkpoint import fp8_from_scaled, int4_from_awq, int4_from_gptq
from slipstream.kernels.quantization.quantized_weight import (
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    QuantizedWeight,
    dequantize,
    join_outputs,
    pack_codes,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
    quantized_linear,
    unpack_codes,
)
from tests.support.kernels.stored_codes import awq_tensors, gptq_tensors


def random_int4(num_inputs: int, num_outputs: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(num_inputs + num_outputs)
    codes = torch.randint(0, 16, (num_inputs, num_outputs))
    zeros = torch.randint(0, 16, (num_inputs // group, num_outputs))
    return codes, zeros, torch.rand(num_inputs // group, num_outputs).half() + 0.1


def plain(codes: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor) -> Tensor:
    """[out, in] by the definition; `groups` [in] is the group of each input."""
    return ((codes - zeros[groups]) * scales[groups].float()).t()


def test_words_hold_the_first_code_lowest() -> None:
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 15]], dtype=torch.uint8)
    words = pack_codes(codes)
    assert words.tolist() == [[0xF7654321 - 2**32]]
    assert torch.equal(unpack_codes(words), codes)


@pytest.mark.parametrize("group", [8, 24, 48])
def test_awq_tensors_mean_code_minus_zero_times_scale(group: int) -> None:
    codes, zeros, scales = random_int4(48, 16, group)
    weight = int4_from_awq(*awq_tensors(codes, zeros), scales)
    assert weight.shape == (16, 48)
    assert weight.group_size == group
    torch.testing.assert_close(dequantize(weight), plain(codes, zeros, scales, torch.arange(48) // group))


@pytest.mark.parametrize("minus_one", [True, False], ids=["v1", "v2"])
def test_gptq_tensors_mean_code_minus_zero_times_scale(minus_one: bool) -> None:
    codes, zeros, scales = random_int4(48, 16, 24)
    zeros[0, 0] = 0  # stored as 15 in version 1
    weight = int4_from_gptq(*gptq_tensors(codes, zeros, minus_one), scales, zeros_minus_one=minus_one)
    assert weight.perm is None
    torch.testing.assert_close(dequantize(weight), plain(codes, zeros, scales, torch.arange(48) // 24))


def test_gptq_with_act_order_sorts_the_inputs_by_group() -> None:
    codes, zeros, scales = random_int4(48, 16, 8)
    g_idx = (torch.arange(48) // 8)[torch.randperm(48)].to(torch.int32)
    weight = int4_from_gptq(*gptq_tensors(codes, zeros, True), scales, g_idx)
    assert weight.perm is not None
    assert torch.equal(g_idx[weight.perm.long()], torch.arange(48, dtype=torch.int32) // 8)
    expected = plain(codes, zeros, scales, g_idx.long())
    torch.testing.assert_close(dequantize(weight), expected)
    x = torch.randn(3, 48)
    torch.testing.assert_close(quantized_linear(x, weight), x @ expected.t(), atol=1e-4, rtol=1e-4)


def test_gptq_with_trivial_groups_has_no_permutation() -> None:
    codes, zeros, scales = random_int4(32, 8, 16)
    weight = int4_from_gptq(*gptq_tensors(codes, zeros, True), scales, torch.arange(32, dtype=torch.int32) // 16)
    assert weight.perm is None


def test_gptq_refuses_groups_of_different_sizes() -> None:
    codes, zeros, scales = random_int4(16, 8, 8)
    with pytest.raises(ValueError, match="g_idx must name each of 2 groups equally often"):
        int4_from_gptq(*gptq_tensors(codes, zeros, True), scales, torch.zeros(16, dtype=torch.int32))


def test_tensors_that_do_not_belong_together_are_refused() -> None:
    codes, zeros, scales = random_int4(16, 16, 8)
    qweight, qzeros = awq_tensors(codes, zeros)
    with pytest.raises(ValueError, match="qzeros must be"):
        int4_from_awq(qweight, qzeros[:1], scales)
    with pytest.raises(ValueError, match="scales must be"):
        int4_from_awq(qweight, qzeros, scales[:, :8])


def test_e4m3_codes_are_the_format_of_the_standard() -> None:
    # sign, 4 bits of exponent with bias 7, 3 bits of mantissa: 1.0, 448, the smallest subnormal, -1.75
    codes = torch.tensor([[0x38, 0x7E, 0x01, 0xBE]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    weight = fp8_from_scaled(codes, torch.tensor(2.0))
    assert dequantize(weight).tolist() == [[2.0, 896.0, 2 * 2.0**-9, -3.5]]


@pytest.mark.parametrize("shape", [(), (1,), (5,), (5, 1)])
def test_scales_of_a_tensor_or_of_channels_become_scales_of_channels(shape: tuple[int, ...]) -> None:
    scales = torch.rand(shape, dtype=torch.bfloat16) + 0.5
    codes = torch.randn(5, 12).to(torch.float8_e4m3fn)
    weight = fp8_from_scaled(codes, scales)
    assert weight.is_per_channel
    torch.testing.assert_close(dequantize(weight), codes.float() * scales.float().reshape(-1, 1))


def test_blocks_of_scales_may_hang_over_the_edge() -> None:
    codes, scales = torch.randn(5, 7).to(torch.float8_e4m3fn), torch.rand(3, 2)
    wide = dequantize(fp8_from_scaled(codes, scales, (2, 4)))
    for row in range(5):
        for column in range(7):
            assert wide[row, column] == codes[row, column].float() * scales[row // 2, column // 4]


@pytest.mark.parametrize("block", [None, (1, 64), (16, 32), (24, 100)])
def test_fp8_keeps_weights_to_a_sixteenth(block: tuple[int, int] | None) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(40, 96)
    weight = quantize_fp8(matrix, block)
    assert weight.codes.float().abs().max() == 448
    # Half a step of 3 bits of mantissa; below 2^-6 of the range steps are constant.
    bound = matrix.abs() / 16 + matrix.abs().max() / 448 * 2.0**-10 * 1.01
    assert ((dequantize(weight) - matrix).abs() <= bound).all()


def test_int8_keeps_weights_to_half_a_step() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(7, 33)
    error = (dequantize(quantize_int8(matrix)) - matrix).abs().amax(dim=1)
    assert (error <= matrix.abs().amax(dim=1) / 127 * 0.501).all()


def test_int4_is_at_least_as_close_as_the_whole_range_rounded() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(6, 128)
    groups = matrix.unflatten(1, (-1, 32))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / 15
    zero = (-low / step).round()
    rounded = (((groups / step).round() + zero).clamp(0, 15) - zero) * step
    error = dequantize(quantize_int4(matrix, 32)).unflatten(1, (-1, 32)) - groups
    assert (error.square().sum(-1) <= (rounded - groups).square().sum(-1) + 1e-6).all()


@pytest.mark.parametrize("quantize", [quantize_fp8, quantize_int8, lambda w: quantize_int4(w, 8)])
def test_a_zero_matrix_stays_zero(quantize: object) -> None:
    assert callable(quantize)
    assert dequantize(quantize(torch.zeros(3, 16))).count_nonzero() == 0


@pytest.mark.parametrize(
    "quantize", [quantize_fp8, lambda w: quantize_fp8(w, (8, 16)), quantize_int8, lambda w: quantize_int4(w, 16)]
)
def test_joined_outputs_are_the_matrices_one_below_the_other(quantize: object) -> None:
    assert callable(quantize)
    parts = [torch.randn(8, 48), torch.randn(16, 48), torch.randn(3, 48)]
    quantized: list[QuantizedWeight] = [quantize(part) for part in parts]
    assert torch.equal(dequantize(join_outputs(quantized)), torch.cat([dequantize(part) for part in quantized]))


def test_joining_refuses_blocks_that_would_reach_into_the_next_part() -> None:
    parts = [quantize_fp8(torch.randn(6, 16), (4, 16)), quantize_fp8(torch.randn(8, 16), (4, 16))]
    with pytest.raises(ValueError, match="end with a block of 4 outputs"):
        join_outputs(parts)


def test_joining_refuses_different_permutations() -> None:
    one = quantize_int4(torch.randn(8, 16), 8)
    other = Int4Weight(one.codes, one.scales, one.zeros, torch.randperm(16).to(torch.int32))
    with pytest.raises(ValueError, match="the same perm"):
        join_outputs([one, other])


def test_forms_refuse_tensors_of_other_shapes_and_dtypes() -> None:
    codes = torch.zeros(4, 16).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"scales must be \[2, 1\]"):
        Fp8Weight(codes, torch.ones(4, 1), (2, 16))
    with pytest.raises(ValueError, match=r"codes must be torch\.int8"):
        Int8Weight(codes, torch.ones(4))
    with pytest.raises(ValueError, match="no multiple of 8"):
        Int4Weight(torch.zeros(4, 3, dtype=torch.int32), torch.ones(4, 2), torch.zeros(4, 2, dtype=torch.uint8))
