"""What the repaired interpreter still sees."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError


@triton.jit
def next_number(numbers) -> None:
    tl.store(numbers, tl.load(numbers) + 1)


@pytest.mark.parametrize(("number", "fits"), [(2**31 - 2, True), (2**31 - 1, False)])
def test_an_integer_that_overflows_is_seen(interpreted: bool, number: int, fits: bool) -> None:
    if not interpreted:
        pytest.skip("a GPU computes on")
    numbers = torch.tensor([number], dtype=torch.int32)
    if fits:
        next_number[(1,)](numbers)
        assert numbers.item() == number + 1
    else:
        with pytest.raises(InterpreterError, match="int32 overflow"):
            next_number[(1,)](numbers)
