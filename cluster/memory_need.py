"""How much memory the workers of a configuration take at least on one host: the weights, and everybody's KV pages.

Weights count once, because workers of a host share the packed form of them (`engine.weight_cache_dir`), and pools on a
GPU or of size `auto` do not count. Code, activations, Ray and the router come on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.config import ClusterConfig
from slipstream.workers.config import EngineConfig
from slipstream.workers.models.config import ModelConfig
from slipstream.workers.models.json_keys import ModelError

MIB = 2**20
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}
QUANTIZED_SHARE = {"none": 1.0, "fp8": 0.5, "int8": 0.5, "int4": 0.25}  # of 16 bits, at least


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
    """What the settings ask for if all workers are on one host: the weights, then each pool."""
    on_host = [(role, pool) for role, pool in config.pools() if pool.engine.device != "cuda" and pool.replicas]
    if on_host:
        share = max(QUANTIZED_SHARE[pool.engine.quantization] for _, pool in on_host)
        yield MemoryPart("the weights in model.path", int(share * _weight_bytes(Path(config.model.path))) // MIB)
    for role, pool in on_host:
        key, each_mib = _pool_mib(config, pool.engine, pool.tp)
        if each_mib is not None:
            yield MemoryPart(f"{role}.engine.{key}", each_mib, pool.replicas * pool.tp)


def _pool_mib(config: ClusterConfig, engine: EngineConfig, tp: int) -> tuple[str, int | None]:
    """The setting, and the MiB of a rank's pool; None: it follows from the room there is, or cannot be known."""
    if engine.num_pages is None:
        size = engine.kv_cache_mib
        return f"kv_cache_mib is {size}", None if size == "auto" else size
    key = f"num_pages is {engine.num_pages}"
    try:
        model = ModelConfig.read(config.model.path)
    except ModelError:
        return key, None
    dtype = model.dtype if engine.dtype == "auto" else engine.dtype
    item_bytes = ITEM_BYTES[dtype if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype]
    page = (model.num_layers, max(1, model.num_kv_heads // tp), 2, engine.page_tokens, model.head_dim)
    return key, engine.num_pages * math.prod(page) * item_bytes // MIB


def _weight_bytes(model_dir: Path) -> int:
    return sum(path.stat().st_size for path in model_dir.glob("*.safetensors"))
