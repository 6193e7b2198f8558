"""Loads a general model: its weights, its attention over our pages, and the proof that both are right."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.general.describe import recorded_calls
from slipstream.workers.models.general.flat_attention import FlatAttention
from slipstream.workers.models.general.flat_model import FlatModel
from slipstream.workers.models.general.pretrained import load_pretrained, read_config
from slipstream.workers.models.general.self_check import check_against_eager
from slipstream.workers.models.general.tensor_parallel_plan import distributed_config, expert_shares, local_device
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
    if tp.size == 1:
        model = load_pretrained(model_dir, dtype)
        model.to(device)  # type: ignore[arg-type]
    else:
        with local_device(device):
            model = load_pretrained(model_dir, dtype, distributed_config=distributed_config(read_config(model_dir), tp))
        held, experts = expert_shares(model)
        if experts:
            log.info("rank %d of %d holds %d of %d experts", tp.rank, tp.size, held, experts)
    attention = FlatAttention(recorded_calls(model).on_rank(spec.kv, tp), spec.kv.num_units // tp.size, page_tokens, tp)
    flat = FlatModel(spec, model, attention, tp)
    check_against_eager(flat, page_tokens)
    return flat
