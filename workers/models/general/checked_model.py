"""A general model by transformers: its weights, its attention over our pages, and the proof that both are right."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.general.attention.flat_attention import FlatAttention
from slipstream.workers.models.general.cached.cache_layout import recorded_layout
from slipstream.workers.models.general.cached.cached_model import CachedModel
from slipstream.workers.models.general.call_ways import find_way
from slipstream.workers.models.general.describe import recorded_calls
from slipstream.workers.models.general.execution.captured_model import CapturedModel
from slipstream.workers.models.general.execution.fused_graph import fused_graph
from slipstream.workers.models.general.execution.native_experts import NativeExperts
from slipstream.workers.models.general.execution.tensor_parallel_plan import (
    distributed_config,
    expert_shares,
    local_device,
)
from slipstream.workers.models.general.flat_model import FlatModel
from slipstream.workers.models.general.graph.recorder import NotCapturedError
from slipstream.workers.models.general.pretrained import decoder_config, load_pretrained, read_config
from slipstream.workers.models.general.registered import set_attention
from slipstream.workers.models.general.self_check import (
    SelfCheckError,
    check_scores,
    eager_scores,
)
from slipstream.workers.models.general.shared_weights import load_shared
from slipstream.workers.models.general.stored_graph import GraphStore
from slipstream.workers.models.interface.model import Model
from slipstream.workers.models.interface.tensor_parallel import TensorParallel

log = logging.getLogger(__name__)


def load_checked(
    model_dir: Path,
    spec: GeneralSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    page_tokens: int,
    tp: TensorParallel,
    cache_dir: Path | None,
    files: SteadyFiles | None,
    library: ctypes.CDLL | None,
    store: GraphStore | None,
) -> Model:
    """As `load_general`; `store` is where a graph is kept for others, None: nowhere."""
    if tp.size > 1:
        return _flat(spec, _load_share(model_dir, spec, dtype, device, tp), page_tokens, tp, library, None)
    model = load_shared(model_dir, dtype, spec.runs_code, cache_dir if device.type == "cpu" else None, files)
    model.to(device)  # type: ignore[arg-type]
    if spec.mode == "cached":
        return _cached(model_dir, spec, model, page_tokens)
    before = model.config._attn_implementation
    try:
        return _flat(spec, model, page_tokens, tp, library, store)
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
    config = distributed_config(decoder_config(read_config(model_dir, spec.runs_code)), tp)
    with local_device(device):
        model = load_pretrained(model_dir, dtype, trust_remote_code=spec.runs_code, distributed_config=config)
    held, experts = expert_shares(model)
    if experts:
        log.info("rank %d of %d holds %d of the %d experts of each layer", tp.rank, tp.size, held, experts)
    return model


def _flat(
    spec: GeneralSpec,
    model: PreTrainedModel,
    page_tokens: int,
    tp: TensorParallel,
    library: ctypes.CDLL | None,
    store: GraphStore | None,
) -> Model:
    """As a graph of native calls if that computes the same, else by the model's own modules."""
    calls = recorded_calls(model).on_rank(spec.kv, tp)
    expected = eager_scores(model, spec)
    num_units = spec.kv.num_units // tp.size
    attention = FlatAttention(calls, num_units, page_tokens, tp, library=library, dtype=model.dtype)
    flat = FlatModel(spec, model, attention, tp)
    if library is not None and tp.size == 1:
        try:
            store = GraphStore.nowhere() if store is None else store
            graph, fused = fused_graph(flat.run, attention, NativeExperts(model, library), library)
            with store.taken(graph) as text:
                captured = CapturedModel(spec, model.dtype, graph, attention, library)
                check_scores(captured, expected, page_tokens)
                if text is not None:
                    store.keep(text, calls)
        except (NotCapturedError, SelfCheckError) as error:
            log.info("%s runs by its own modules: %s", spec.architecture, error)
        else:
            log.info("%s runs as a graph of native calls: %s", spec.architecture, fused)
            return captured
    check_scores(flat, expected, page_tokens)
    return flat


def _cached(model_dir: Path, spec: GeneralSpec, model: PreTrainedModel, page_tokens: int) -> CachedModel:
    layout = recorded_layout(model)
    if layout.kv_spec != spec.kv:
        raise ModelError(f"{model_dir}: the loaded model keeps something else than its configuration says")
    cached = CachedModel(spec, model, layout, page_tokens)
    find_way(cached, page_tokens)
    if not cached.can_batch:
        log.info("%s computes sequences that decode one by one", spec.architecture)
    if not cached.can_continue:
        cached.spec = replace(spec, continues_singly=True)
        log.info("%s computes the tokens of a prompt, after its first chunk, one by one", spec.architecture)
    return cached
