"""Loads the same model in torch or in native code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slipstream.kernels.cpu.native_library import native_library
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.model_loader import load_model
from slipstream.workers.models.native_model import NativeModel, load_native
from slipstream.workers.models.ops_model import OpsModel

KINDS = ("torch", "native")
EXPERT_PARALLEL = "+ep"  # behind a kind: whole experts are dealt out to the ranks
PAGE_TOKENS = 8


def load(
    kind: str,
    model_dir: Path,
    dtype: torch.dtype = torch.float32,
    tp: TensorParallel | None = None,
    codes: torch.dtype | None = None,
) -> OpsModel | NativeModel:
    """For pages of PAGE_TOKENS, in `codes` or the same dtype. `kind` is one of KINDS, maybe with EXPERT_PARALLEL; the
    test is skipped where the machine has no native kernels."""
    expert_parallel = kind.endswith(EXPERT_PARALLEL)
    kind = kind.removesuffix(EXPERT_PARALLEL)
    if kind == "torch":
        return load_model(model_dir, dtype=dtype, tp=tp, expert_parallel=expert_parallel)
    library = native_library()
    if library is None:
        pytest.skip("no native kernels here")
    return load_native(
        model_dir,
        library,
        dtype=dtype,
        page_tokens=PAGE_TOKENS,
        of_pages=codes,
        tp=tp,
        expert_parallel=expert_parallel,
    )
