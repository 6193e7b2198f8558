"""Products with packed weights are products with the weights."""

from __future__ import annotations

import pytest
import torch

from slipstream.kernels.linear.packed_linear import linear, pack_weight

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-3}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3, 200])
def test_packed_weights_multiply_any_number_of_rows(num_rows: int, biased: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(num_rows, 40), torch.randn(259, 40), torch.randn(259)
    x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
    expected = x.double() @ weight.double().T + (bias.double() if biased else 0)
    got = linear(x, pack_weight(weight), bias if biased else None)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_packed_weight_gives_itself_back(dtype: torch.dtype) -> None:
    weight = torch.randn(70, 33).to(dtype)
    assert torch.equal(pack_weight(weight).to_dense(), weight)
