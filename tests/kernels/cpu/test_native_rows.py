"""Norms, rotary embedding and the best of scores on plain tensors."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.cpu.native_library import native_library
from slipstream.kernels.cpu.native_rows import NativeLayerNorm, NativeNorm, NativeRotation, best_of_rows

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
DTYPES = list(TOLERANCE)


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = native_library()
    if found is None:
        pytest.skip("no native kernels here")
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 20), (1, 700, 64), (3, 5, 4, 24)])
def test_norm_is_that_of_torch_and_a_row_does_not_depend_on_others(
    library: ctypes.CDLL, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.randn(shape, dtype=dtype)
    weight = torch.randn(shape[-1])
    for own in (weight, None):
        norm = NativeNorm(library, shape[-1], own, 1e-5, dtype)
        expected = F.rms_norm(x.float(), (shape[-1],), own, 1e-5).to(dtype)
        torch.testing.assert_close(norm(x), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert torch.equal(norm(x)[:, :1], norm(x[:, :1]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 20), (1, 700, 64), (3, 5, 4, 24)])
def test_layer_norm_is_that_of_torch_and_a_row_does_not_depend_on_others(
    library: ctypes.CDLL, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.randn(shape, dtype=dtype) + 3
    parts = torch.randn(2, shape[-1]).unbind()
    for weight, bias in (parts, (parts[0], None), (None, None)):
        norm = NativeLayerNorm(library, shape[-1], weight, bias, 1e-5, dtype)
        expected = F.layer_norm(x.float(), (shape[-1],), weight, bias, 1e-5).to(dtype)
        torch.testing.assert_close(norm(x), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert torch.equal(norm(x)[:, :1], norm(x[:, :1]))


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    low, high = x.float().chunk(2, dim=-1)
    return (x.float() * cosines.float() + torch.cat((-high, low), dim=-1) * sines.float()).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [16, 20])
def test_the_first_numbers_of_heads_are_rotated_in_place(library: ctypes.CDLL, dim: int, dtype: torch.dtype) -> None:
    rows = torch.randn(1, 300, 3 * 32, dtype=dtype)
    heads = rows.view(1, 300, 3, 32).transpose(1, 2)
    cosines, sines = (torch.randn(1, 1, 300, dim, dtype=dtype) for _ in range(2))
    before = heads.clone()
    rotation = NativeRotation(library, dim, dtype)
    assert rotation(heads, cosines, sines) is heads
    torch.testing.assert_close(
        heads[..., :dim], rotated(before[..., :dim], cosines, sines), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )
    assert torch.equal(heads[..., dim:], before[..., dim:])
    joined = before.transpose(1, 2).reshape(1, 300, -1)
    rotation.rotate_joined(joined, 3, 32, cosines, sines)
    assert torch.equal(joined, rows)


def test_the_best_of_scores_is_the_first_of_equals_and_not_a_number_is_told(library: ctypes.CDLL) -> None:
    scores = torch.randn(40, 900)
    scores[1, 5] = scores[1, 7] = 100
    scores[2, 3] = float("nan")
    scores[3, 899] = 1000  # beyond those that count
    token_ids, is_sound = best_of_rows(library, scores, 899)
    expected = scores[:, :899].argmax(-1)
    assert [token_ids[row] for row in (0, 1, 3)] == [expected[0], 5, expected[3]]
    assert is_sound.tolist() == [row != 2 for row in range(40)]
