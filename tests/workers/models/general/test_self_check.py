"""What the check of a loaded model refuses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.workers.models.general.self_check import SelfCheckError
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from tests.support.workers.general_models import build_general_model
from tests.support.workers.general_run import GeneralRun


@pytest.mark.parametrize("kind", ["phi", "qwen3_next"])
def test_weights_that_are_no_numbers_are_refused_by_a_sentence_that_says_so(kind: str, tmp_path: Path) -> None:
    """As a flat batch, and with a cache."""
    weights = build_general_model(kind, tmp_path) / "model.safetensors"
    tensors = load_file(weights)
    next(tensor for name, tensor in tensors.items() if name.endswith("norm.weight")).fill_(math.nan)
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(SelfCheckError, match=r"its scores are no numbers; those of the weight .*norm\.weight are none"):
        GeneralRun.load(tmp_path, torch.float32, TensorParallel())
