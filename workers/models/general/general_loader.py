"""Loads a general model: its weights, its attention over our pages, and the proof that both are right."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.general.describe import recorded_calls
from slipstream.workers.models.general.flat_attention import FlatAttention
from slipstream.workers.models.general.flat_model import FlatModel
from slipstream.workers.models.general.pretrained import load_pretrained
from slipstream.workers.models.general.self_check import check_against_eager
from slipstream.workers.models.interface.tensor_parallel import TensorParallel

log = logging.getLogger(__name__)


def load_flat(
    model_dir: Path,
    spec: GeneralSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    page_tokens: int,
    tp: TensorParallel,
) -> FlatModel:
    """Raises ModelError, also if our attention does not compute what the model's own does."""
    model = load_pretrained(model_dir, dtype)
    model.to(device)  # type: ignore[arg-type]
    calls = recorded_calls(model)
    if calls.kv_spec(tp.size) != spec.kv:
        raise ModelError(f"{model_dir}: the loaded model stores other keys and values than its configuration says")
    attention = FlatAttention(calls, spec.kv.num_units // tp.size, page_tokens)
    flat = FlatModel(spec, model, attention, tp)
    check_against_eager(flat, page_tokens)
    return flat
