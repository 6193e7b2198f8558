"""Settings of an engine that only native models have."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.models.directory.model_spec import GeneralSpec


def not_general(config: EngineConfig, model: GeneralSpec) -> Iterator[tuple[str, str]]:
    """The keys that a model which transformers computes does not have, and why, in words that follow the key."""
    for key, value, plain in (
        ("quantization", config.quantization, "none"),
        ("kv_cache_dtype", config.kv_cache_dtype, "auto"),
        ("expert_parallel", config.expert_parallel, False),
    ):
        if value != plain:
            yield key, f"must be {str(plain).lower()}, because transformers computes {model.architecture}"
