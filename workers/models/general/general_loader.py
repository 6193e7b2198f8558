"""Loads a general model: its weights, its attention over our pages, and the proof that both are right."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from transformers import PreTrainedModel

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.general.cached.cache_layout import recorded_layout
from slipstream.workers.models.general.cached.cached_model import CachedModel
from slipstream.workers.models.general.describe import recorded_calls
from slipstream.workers.models.general.flat_attention import FlatAttention
from slipstream.workers.models.general.flat_model import FlatModel
from slipstream.workers.models.general.pretrained import load_pretrained, read_config
from slipstream.workers.models.general.registered import set_attention
from slipstream.workers.models.general.self_check import SelfCheckError, check_against_eager
from slipstream.workers.models.general.shared_weights import load_shared
from slipstream.workers.models.general.tensor_parallel_plan import distributed_config, expert_shares, local_device
from slipstream.workers.models.interface.model import Model
from slipstream.workers.models.interface.tensor_parallel import TensorParallel

log = logging.getLogger(__name__)


def load_general(
    model_dir: Path,
    spec: GeneralSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    page_tokens: int,
    tp: TensorParallel,
    cache_dir: Path | None = None,
    files: SteadyFiles | None = None,
) -> Model:
    """`cache_dir` is where workers share weights that transformers converts, `files` those of the directory as they
    were before anything was read. Raises ModelError, also if what would be computed over pages is not what the model
    computes by itself."""
    if tp.size > 1:
        return _flat(spec, _load_share(model_dir, spec, dtype, device, tp), page_tokens, tp)
    model = load_shared(model_dir, dtype, spec.runs_code, cache_dir if device.type == "cpu" else None, files)
    model.to(device)  # type: ignore[arg-type]
    if spec.mode == "cached":
        return _cached(model_dir, spec, model, page_tokens)
    before = model.config._attn_implementation
    try:
        return _flat(spec, model, page_tokens, tp)
    except SelfCheckError as error:
        set_attention(model, before)
        try:
            cached = _cached(model_dir, spec, model, page_tokens)
        except ModelError:
            raise error from None
        log.info("%s runs with a cache over pages; as one flat batch, %s", spec.architecture, error)
        return cached


def _load_share(
    model_dir: Path, spec: GeneralSpec, dtype: torch.dtype, device: torch.device, tp: TensorParallel
) -> PreTrainedModel:
    """One rank's share of the model."""
    plan = distributed_config(read_config(model_dir, spec.runs_code), tp)
    with local_device(device):
        model = load_pretrained(model_dir, dtype, trust_remote_code=spec.runs_code, distributed_config=plan)
    held, experts = expert_shares(model)
    if experts:
        log.info("rank %d of %d holds %d of %d experts", tp.rank, tp.size, held, experts)
    return model


def _flat(spec: GeneralSpec, model: PreTrainedModel, page_tokens: int, tp: TensorParallel) -> FlatModel:
    calls = recorded_calls(model).on_rank(spec.kv, tp)
    flat = FlatModel(spec, model, FlatAttention(calls, spec.kv.num_units // tp.size, page_tokens, tp), tp)
    check_against_eager(flat, page_tokens)
    return flat


def _cached(model_dir: Path, spec: GeneralSpec, model: PreTrainedModel, page_tokens: int) -> CachedModel:
    layout = recorded_layout(model)
    if layout.kv_spec != spec.kv:
        raise ModelError(f"{model_dir}: the loaded model keeps something else than its configuration says")
    cached = CachedModel(spec, model, layout, page_tokens)
    ways = [(True, True), (False, True)]
    if layout.states:
        ways += [(True, False), (False, False)]
    for cached.can_batch, cached.can_continue in ways:
        try:
            check_against_eager(cached, page_tokens)
            break
        except SelfCheckError as error:
            failure = error
    else:
        raise failure
    if not cached.can_batch or not cached.can_continue:
        how = "sequences" if cached.can_continue else "tokens of a prompt, after its first chunk,"
        log.info("%s computes %s one by one", spec.architecture, how)
    return cached
