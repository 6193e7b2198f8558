"""Builds an engine from a model directory and settings, up to its first generated token."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import torch

from slipstream.kernels.cpu.native_library import native_library
from slipstream.router.process.container_limits import num_cores
from slipstream.router.protocol.messages import EngineRequest, SamplingParams, pack_ids
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.execution.gpu.gpu_build import build_gpu_runner
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.kv_cache.kv_memory import KvMemory
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.limits.general_settings import not_general
from slipstream.workers.engine.limits.kv_budget import auto_num_pages, require_room
from slipstream.workers.engine.limits.pool_size import (
    budget_source,
    elastic_num_pages,
    longest_sequence,
    most_useful_pages,
    num_state_pages,
    page_bytes,
    page_demand,
    page_tokens,
    pool_source,
    stated_num_pages,
)
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.executor import Executor, PageMemory
from slipstream.workers.engine.processors.registered_processors import NO_PROCESSORS, LogitsProcessors
from slipstream.workers.engine.structured_output.grammars import GrammarCompiler
from slipstream.workers.models.directory.end_tokens import end_token_ids
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.model_spec import GeneralSpec, LanguageModelSpec, check_tp
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.interface.kv_shape import kv_dtype, kv_shape
from slipstream.workers.models.interface.model import Model
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.model_loader import TORCH_DTYPES, load_model
from slipstream.workers.models.native_model import is_native, load_native
from slipstream.workers.models.ops_model import OpsModel
from slipstream.workers.models.spec_reader import NOT_NATIVE, read_spec, why_not_native
from slipstream.workers.models.weights.weight_cache import default_directory

log = logging.getLogger(__name__)

WARM_UP_TOKENS = 32
SMALL_MACHINE_CORES = 8
SCORES_BYTES = 256 << 20  # of a step, where a model computes those of all its rows at once


def engine_limits(
    model_dir: Path | str,
    config: EngineConfig,
    *,
    tp: TensorParallel | None = None,
    max_queued_tokens: int = 8192,
    model_id: str | None = None,
    ranks_on_host: int = 1,
    model: LanguageModelSpec | None = None,
    kv_budget_bytes: int | None = None,
    holds_prompts: bool = False,
) -> EngineLimits:
    """What an engine with these settings can hold; the same on all ranks of a group. Reads only JSON files, and no
    config.json if that is given as `model`.

    `kv_cache_mib` is the memory of one rank; where it is `auto`, a group's ranks call this together, and
    `ranks_on_host` share the host's memory. With `kv_budget_bytes`, a pool on the host may grow to all of it (see
    `elastic_num_pages`). Without `max_model_len` it is what the model allows and the pool holds. `holds_prompts`: for a
    prefill worker (see `EngineLimits`).
    The prefix cache shares KV only between engines of one `model_id`, by default the directory, the dtypes and the
    quantisation.

    Raises ModelError if the directory cannot be served and EngineConfigError, naming the key, if the settings do not
    fit the model.
    """
    model = read_spec(Path(model_dir), config.model_impl) if model is None else model
    tp = TensorParallel() if tp is None else tp
    check_tp(model, tp.size)
    dtype = _dtype(config, model)
    of_pages = kv_dtype(config.kv_cache_dtype, dtype)
    num_pages, source = stated_num_pages(model, config, tp), pool_source(config)
    if kv_budget_bytes is not None and _device(config, tp).type == "cpu":
        num_pages, source = elastic_num_pages(model, config, tp, kv_budget_bytes), budget_source(kv_budget_bytes)
    elif num_pages is None:
        num_pages = _auto_pool_size(model_dir, config, model, tp, ranks_on_host)
    return EngineLimits(
        num_pages=num_pages,
        page_tokens=page_tokens(model, config),
        max_model_len=longest_sequence(model, config, num_pages, source, holds_prompts=holds_prompts),
        max_num_seqs=config.most_num_seqs,
        max_step_tokens=config.most_step_tokens,
        max_queued_tokens=max_queued_tokens,
        vocab_size=model.vocab_size,
        eos_token_ids=end_token_ids(Path(model_dir)),
        model_id=model_id or f"{Path(model_dir).resolve()}:{dtype}:{config.quantization}:{of_pages}",
        prefix_caching=config.prefix_caching,
        windows=model.kv.page_groups.windows,
        holds_prompts=holds_prompts,
        auto_step_tokens=config.max_step_tokens == "auto",
        auto_num_seqs=config.max_num_seqs == "auto",
        reserves_output=config.scheduler_policy == "guaranteed_no_evict",
        state_pages=num_state_pages(model, config),
        state_block_tokens=config.page_tokens if model.kv.is_state_only else None,
        max_scored_tokens=_max_scored_tokens(model),
    )


def _max_scored_tokens(model: LanguageModelSpec) -> int | None:
    """The native families have their output layer computed for some rows at a time, so that any number will do."""
    return max(1, SCORES_BYTES // (4 * model.vocab_size)) if isinstance(model, GeneralSpec) else None


def _auto_pool_size(
    model_dir: Path | str, config: EngineConfig, model: LanguageModelSpec, tp: TensorParallel, ranks_on_host: int
) -> int:
    """The number of pages that the free memory of all ranks allows."""
    device = _device(config, tp)
    num_pages = auto_num_pages(
        device,
        Path(model_dir),
        tp_size=tp.size,
        ranks_on_host=ranks_on_host,
        page_bytes=page_bytes(model, config, tp),
        max_useful=most_useful_pages(model, config),
    )
    return tp.least(num_pages, device)


def build_runner(
    model_dir: Path | str,
    config: EngineConfig,
    num_pages: int,
    *,
    tp: TensorParallel | None = None,
    memory: KvMemory | None = None,
    files: SteadyFiles | None = None,
    spec: LanguageModelSpec | None = None,
) -> ModelRunner:
    """Loads a rank's share of the model and allocates its pool of `num_pages` pages (see `engine_limits`), on the host
    from `memory` if that is given. `files` are those of the directory, as they were before anything was read;
    `spec` says what is in it, if that is known.

    Sets the process's number of threads, torch's and the native kernels', where `num_threads` is given. Raises
    ModelError, FilesChanged, and EngineConfigError if the device is not there or the pool does not fit into its memory.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    tp = TensorParallel() if tp is None else tp
    device = _device(config, tp)
    spec = read_spec(Path(model_dir), config.model_impl) if spec is None else spec
    check_tp(spec, tp.size)
    dtype = _dtype(config, spec)
    of_pages = kv_dtype(config.kv_cache_dtype, dtype)
    model = _load(Path(model_dir), spec, config, dtype, device, tp, files)
    shape = kv_shape(model.config, tp, num_pages, config.page_tokens, of_pages)
    # The memory is written and not just mapped, so that no request pays for page faults; but not where the router says
    # how much of it may be used, and may never allow all.
    if memory is None or not memory.is_elastic or device.type != "cpu":
        require_room(pool_source(config), math.prod(shape) * of_pages.itemsize, device)
    if memory is not None and device.type == "cpu":
        kv = memory.zeros(shape, of_pages)
    else:
        kv = torch.empty(shape, dtype=of_pages, device=device).zero_()
    if isinstance(model, OpsModel) and device.type == "cuda":
        longest = page_demand(spec, config).most_tokens(num_pages, spec.max_position_embeddings)
        longest = min(spec.max_position_embeddings, longest)
        max_model_len = min(longest, config.max_model_len or longest)
        return build_gpu_runner(
            model,
            kv,
            max_num_seqs=config.most_num_seqs,
            max_model_len=max_model_len,
            max_step_tokens=config.most_step_tokens,
        )
    return ModelRunner(model, kv)


def build_engine(
    limits: EngineLimits,
    executor: Executor,
    grammars: GrammarCompiler | None = None,
    memory: PageMemory | None = None,
    processors: LogitsProcessors = NO_PROCESSORS,
) -> NativeEngine:
    """A new engine that is ready to serve: tokens have already been generated with `executor` (in another engine, of
    which nothing is left but warm caches). For `memory` see `NativeEngine`."""
    warm_up(limits, executor)
    return NativeEngine(limits, executor, grammars, memory, processors)


def warm_up(limits: EngineLimits, executor: Executor) -> None:
    """Generates tokens, greedily and sampled, in one batch. Raises ModelError if that fails."""
    engine = NativeEngine(limits, executor)
    num_prompt = max(1, min(WARM_UP_TOKENS, limits.max_model_len - 2))
    prompt = pack_ids(position % limits.vocab_size for position in range(num_prompt))
    drawn = SamplingParams(max_tokens=2, temperature=1.0, top_p=0.9, ignore_eos=True)
    greedy = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    for name, params in (("warm-up-greedy", greedy), ("warm-up-drawn", drawn)):
        engine.add(EngineRequest(name, 0, prompt, b"", params))
    num_finished = 0
    while engine.has_work:
        num_finished += sum(output.finish_reason == "length" for output in engine.step())
    if num_finished != 2:
        raise ModelError(f"warm-up: {num_finished} of 2 requests came to a good end: are the model's scores numbers?")


def _load(
    model_dir: Path,
    spec: LanguageModelSpec,
    config: EngineConfig,
    dtype: torch.dtype,
    device: torch.device,
    tp: TensorParallel,
    files: SteadyFiles | None,
) -> Model:
    """The native family if there is one, with native kernels if they can compute it; else transformers' class."""
    if isinstance(spec, GeneralSpec):
        return _load_general(model_dir, spec, config, dtype, device, tp, files)
    assert isinstance(spec, ModelConfig)
    model = spec
    if device.type == "cpu" and config.cpu_kernels == "auto" and is_native(model, dtype):
        library = native_library()
        if library is not None:
            library.slipstream_set_num_threads(config.num_threads or _default_native_threads(tp))
            return load_native(
                model_dir,
                library,
                dtype=dtype,
                page_tokens=config.page_tokens,
                of_pages=kv_dtype(config.kv_cache_dtype, dtype),
                tp=tp,
                cache_dir=weight_cache_dir(config),
                quantization=config.quantization,
                expert_parallel=config.expert_parallel,
                files=files,
            )
    if device.type == "cpu" and (model.quantization is not None or config.quantization != "none"):
        name = str(dtype).removeprefix("torch.")
        log.warning("without native kernels quantised weights are widened to %s: they save no memory, no time", name)
    return load_model(
        model_dir,
        dtype=dtype,
        device=device,
        tp=tp,
        quantization=config.quantization,
        expert_parallel=config.expert_parallel,
    )


def _load_general(
    model_dir: Path,
    spec: GeneralSpec,
    config: EngineConfig,
    dtype: torch.dtype,
    device: torch.device,
    tp: TensorParallel,
    files: SteadyFiles | None,
) -> Model:
    reason = why_not_native(model_dir) if config.model_impl == "auto" else None
    if reason is not None and tp.rank == 0:
        log.warning("%s: %s", reason, NOT_NATIVE)
    for key, reason in not_general(config, spec):
        raise EngineConfigError(f"{key} {reason}, got {str(getattr(config, key)).lower()}")
    # Imported here, for what it imports is not needed by native models.
    from slipstream.workers.models.general.general_loader import load_general

    library = native_library() if device.type == "cpu" and config.cpu_kernels == "auto" else None
    if library is not None:
        library.slipstream_set_num_threads(config.num_threads or _default_native_threads(tp))
    return load_general(
        model_dir,
        spec,
        dtype=dtype,
        device=device,
        page_tokens=config.page_tokens,
        tp=tp,
        cache_dir=weight_cache_dir(config),
        files=files,
        library=library,
    )


def weight_cache_dir(config: EngineConfig) -> Path | None:
    """That of packed weights; None, after a warning, if it would be in the home directory of a user who has none."""
    if config.weight_cache_dir is None:
        return None
    try:
        return default_directory() if config.weight_cache_dir == "auto" else Path(config.weight_cache_dir).expanduser()
    except RuntimeError as error:
        log.warning("weight_cache_dir %s: %s Packed weights take memory in each worker", config.weight_cache_dir, error)
        return None


def _default_native_threads(tp: TensorParallel) -> int:
    """As many threads as torch has; on a small machine, as many as there are cores, for each group. A quota of the
    container counts as so many cores: threads beyond it would be stopped for the rest of each period. One worker often
    waits while another computes, and if all of them compute, the native kernels lose nothing
    (docs/results/engine_cpu.md). The ranks of a group compute at the same time, so they share the cores."""
    of_group = min(num_cores(), SMALL_MACHINE_CORES)
    return max(torch.get_num_threads(), of_group // tp.size)


def _dtype(config: EngineConfig, model: LanguageModelSpec) -> torch.dtype:
    return TORCH_DTYPES[model.dtype if config.dtype == "auto" else config.dtype]


def _device(config: EngineConfig, tp: TensorParallel) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise EngineConfigError("device cuda: torch sees no GPU here")
    if config.device == "cpu" or not has_cuda:
        return torch.device("cpu")
    return torch.device("cuda", tp.rank % torch.cuda.device_count())
