"""Loads a general model: as it was kept by an earlier start, else by transformers."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import torch

from slipstream.workers.models.description.no_collection import no_collection
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.general.stored_graph import GraphStore
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
    library: ctypes.CDLL | None = None,
) -> Model:
    """`cache_dir` is where workers share weights and graphs, `files` those of the directory before anything was
    read, `library` the native kernels, for models on the host. Raises ModelError, also if what would be computed
    over pages is not what the model computes by itself."""
    if library is None or tp.size > 1 or spec.mode != "flat":
        return _loaded(model_dir, spec, dtype, device, page_tokens, tp, cache_dir, files, library, None)
    store = GraphStore.of(model_dir, spec, dtype, page_tokens, library, cache_dir, files)
    kept = store.load(spec, dtype, page_tokens, library)
    if kept is None:
        with store.loading():
            kept = store.load(spec, dtype, page_tokens, library)  # another worker may have kept it meanwhile
            if kept is None:
                return _loaded(model_dir, spec, dtype, device, page_tokens, tp, cache_dir, files, library, store)
    log.info("%s runs as a graph of native calls that was checked before", spec.architecture)
    return kept


def _loaded(
    model_dir: Path,
    spec: GeneralSpec,
    dtype: torch.dtype,
    device: torch.device,
    page_tokens: int,
    tp: TensorParallel,
    cache_dir: Path | None,
    files: SteadyFiles | None,
    library: ctypes.CDLL | None,
    store: GraphStore | None,
) -> Model:
    with no_collection():
        # Imported here, as transformers takes seconds, which a kept graph does not need.
        from slipstream.workers.models.general.checked_model import load_checked

        return load_checked(
            model_dir,
            spec,
            dtype=dtype,
            device=device,
            page_tokens=page_tokens,
            tp=tp,
            cache_dir=cache_dir,
            files=files,
            library=library,
            store=store,
        )
