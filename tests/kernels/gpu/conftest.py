"""Triton kernels run on the GPU where there is one, elsewhere in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import triton

from tests.support.kernels import interpreter


@pytest.fixture(scope="session", autouse=True)
def interpreted() -> Iterator[bool]:
    """Whether kernels are interpreted: `tests/conftest.py` asks for it before anybody imports triton."""
    if not triton.knobs.runtime.interpret:
        yield False
        return
    with pytest.MonkeyPatch.context() as patch:
        interpreter.repair(patch)
        yield True


@pytest.fixture(scope="session")
def device(interpreted: bool) -> torch.device:
    """Where the tensors of a kernel are."""
    return torch.device("cpu" if interpreted else "cuda")
