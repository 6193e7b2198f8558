"""How much memory the workers of a configuration take at least on one host: the weights, and the processes and KV pages
of all ranks.

Weights count once, because workers of a host share the packed form of them (`engine.weight_cache_dir`), and pools on a
GPU or of size `auto` do not count. With `budget.memory_gib`, that counts instead of the pools. Activations, Ray and the
router come on top.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.repository.model_dir import code_of
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.limits.pool_size import ITEM_BYTES, page_bytes
from slipstream.workers.models.description.model_description import CodeNotRunError
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.model_spec import LanguageModelSpec
from slipstream.workers.models.directory.weight_files import pickled_file_names, weight_file_names
from slipstream.workers.models.sharding.rank_share import Rank
from slipstream.workers.models.spec_reader import read_spec

MIB = 2**20
PROCESS_MIB = 240  # what a worker of the demo model takes beside weights and pages: Python and PyTorch
CODE_BYTES = {"fp8": 1.0, "int8": 1.0, "int4": 0.5}  # of a weight, without its part of the scales
MXFP4_BYTES = 17 / 32  # of an expert's weight, and such are nearly all, with its part of the scales


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """What one setting asks for on a host: `count` ranks ask for `each_mib`. `said` is the key with its value."""

    said: str
    each_mib: int
    count: int = 1

    @property
    def mib(self) -> int:
        return self.each_mib * self.count

    def __str__(self) -> str:
        return (
            f"{self.said} ({self.count} x {self.each_mib} MiB)" if self.count > 1 else f"{self.said} ({self.mib} MiB)"
        )


def memory_parts(config: ClusterConfig) -> Iterator[MemoryPart]:
    """What the settings ask for if all workers are on one host: the weights, then the processes and pages of each
    pool."""
    on_host = [(role, pool) for role, pool in config.pools() if pool.engine.device != "cuda" and pool.replicas]
    if on_host:
        num_bytes = _weight_bytes(config, [pool.engine for _, pool in on_host])
        yield MemoryPart("the weights in model.path", num_bytes // MIB)
        if config.budget.memory_gib is not None:
            yield MemoryPart(f"budget.memory_gib is {config.budget.memory_gib:g}", int(config.budget.memory_gib * 1024))
    for role, pool in on_host:
        yield MemoryPart(f"{role}.replicas is {pool.replicas}", PROCESS_MIB, pool.replicas * pool.tp)
        key, each_mib = _pool_mib(config, pool.engine, pool.tp)
        if each_mib is not None and config.budget.memory_gib is None:
            yield MemoryPart(f"{role}.engine.{key}", each_mib, pool.replicas * pool.tp)


def _pool_mib(config: ClusterConfig, engine: EngineConfig, tp: int) -> tuple[str, int | None]:
    """The setting, and the MiB of a rank's pool; None: it follows from the room there is, or cannot be known."""
    if engine.num_pages is None:
        size = engine.kv_cache_mib
        return f"kv_cache_mib is {size}", None if size == "auto" else size
    key = f"num_pages is {engine.num_pages}"
    try:
        num_bytes = page_bytes(_spec(config, engine), engine, Rank(0, tp))
    except ModelError:
        return key, None
    return key, engine.num_pages * num_bytes // MIB


def _spec(config: ClusterConfig, engine: EngineConfig) -> LanguageModelSpec:
    return read_spec(Path(config.model.path), engine.model_impl, code_of(config), in_subprocess=True)


def _weight_bytes(config: ClusterConfig, engines: Sequence[EngineConfig]) -> int:
    """The weights in the largest form that one of the engines keeps; 0 if the files have changed since they were
    checked."""
    model_dir = Path(config.model.path)
    try:
        files = pickled_file_names(model_dir) or weight_file_names(model_dir)
        num_bytes = sum((model_dir / file).stat().st_size for file in files)
        model = _spec(config, engines[0])
    except CodeNotRunError:
        return num_bytes
    except (ModelError, OSError):
        return 0
    return int(num_bytes * max(_kept_share(model, engine) for engine in engines))


def _kept_share(model: LanguageModelSpec, engine: EngineConfig) -> float:
    """Which part of the bytes of the checkpoint an engine keeps at least."""
    if isinstance(model, ModelConfig) and model.quantization is not None:
        return 1.0
    if isinstance(model, ModelConfig) and model.moe is not None and model.moe.is_mxfp4:
        return ITEM_BYTES[model.dtype if engine.dtype == "auto" else engine.dtype] / MXFP4_BYTES
    kept = CODE_BYTES.get(engine.quantization) or ITEM_BYTES[model.dtype if engine.dtype == "auto" else engine.dtype]
    return kept / ITEM_BYTES[model.dtype]
