"""Models over pages of eight-bit keys and values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.interface.kv_shape import CODES, kv_dtype, kv_shape
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from tests.support.workers.any_model import KINDS, load
from tests.support.workers.paged_run import PagedRun
from tests.support.workers.tiny_models import VOCAB_SIZE

DTYPES = (torch.float32, torch.bfloat16)


def tokens(seed: int, count: int) -> list[int]:
    return torch.randint(0, VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def logits(kind: str, model_dir: Path, dtype: torch.dtype, codes: torch.dtype | None) -> Tensor:
    """Of two sequences that come in chunks and single tokens, so that most keys are read from pages."""
    run = PagedRun(load(kind, model_dir, dtype, codes=codes), codes=codes)
    a, b = tokens(1, 61), tokens(2, 50)
    steps = [{"a": a[:37]}, {"b": b[:49], "a": a[37:60]}, {"a": a[60:], "b": b[49:]}]
    parts = [run.step(step) for step in steps]
    return torch.cat([part for part in parts if part is not None])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_codes_cost_little_and_both_forms_read_the_same_in_them(
    family: str, codes: torch.dtype, dtype: torch.dtype, tiny_model_dir: Callable[[str], Path]
) -> None:
    model_dir = tiny_model_dir(family)
    exact = logits("torch", model_dir, torch.float32, None)
    rounded = {kind: logits(kind, model_dir, dtype, codes) for kind in KINDS}
    of_codes = {kind: float((scores - exact).abs().mean() / exact.std()) for kind, scores in rounded.items()}
    assert 0 < of_codes["torch"] < (0.04 if codes == torch.int8 else 0.12)
    assert 0 < of_codes["native"] < 1.05 * of_codes["torch"]
    if dtype == torch.float32:  # a number at the edge between two codes may become either
        apart = float((rounded["native"] - rounded["torch"]).abs().mean() / exact.std())
        assert apart < 0.01 * of_codes["torch"]


def test_a_page_of_codes_has_room_for_its_scales(tiny_model_dir: Callable[[str], Path]) -> None:
    config = ModelConfig.read(tiny_model_dir("llama"))
    for name, codes in CODES.items():
        assert kv_dtype(name, torch.bfloat16) == codes
        assert kv_shape(config, TensorParallel(), 10, 16, codes) == (3, 10, 2, 2 * 16 * (16 + 4))
    assert kv_dtype("auto", torch.bfloat16) == torch.bfloat16
    assert kv_shape(config, TensorParallel(), 10, 16, torch.bfloat16) == (3, 10, 2, 2, 16, 16)
