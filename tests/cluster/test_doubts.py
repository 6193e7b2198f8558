"""What `check` warns of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.cluster.config import ClusterConfig, ModelConfig, PoolConfig, RayConfig
from slipstream.cluster.doubts import Machine, doubts_about
from slipstream.workers.config import EngineConfig
from tests.cluster.test_config_file import add_token, write_model

MACHINE = Machine(memory_bytes=4096 * 2**20, num_cores=8)


def cluster(prefill: dict[str, Any], decode: dict[str, Any], **pool: int) -> ClusterConfig:
    return ClusterConfig(
        model=ModelConfig("models/m"),
        prefill=PoolConfig(engine=EngineConfig(**prefill), **pool),
        decode=PoolConfig(engine=EngineConfig(**decode)),
    )


@pytest.mark.parametrize(
    ("config", "doubt"),
    [
        (cluster({"quantization": "fp8"}, {}), "quantization is fp8 for prefill and none for decode"),
        (cluster({}, {"kv_cache_mib": 4097}), "decode.engine.kv_cache_mib is 4097, and this machine has 4096 MiB"),
        (cluster({"kv_cache_mib": 2048}, {"kv_cache_mib": 2049}), "of all 2 ranks together is 4097, and this machine"),
        (
            cluster({"num_threads": 9}, {"num_threads": 9}),
            "prefill.engine.num_threads is 9, and this machine has 8 cores",
        ),
        (
            ClusterConfig(model=ModelConfig("models/m"), ray=RayConfig(object_store_mib=4097)),
            "ray.object_store_mib is 4097, and this machine has 4096 MiB of memory",
        ),
        (cluster({"kv_cache_mib": 1024}, {}, replicas=2, tp=2), "of all 5 ranks together is 4352, and this machine"),
    ],
)
def test_each_doubt_names_its_key_and_what_is_there(config: ClusterConfig, doubt: str) -> None:
    [told] = doubts_about(config, MACHINE)
    assert doubt in told


@pytest.mark.parametrize(
    "engine",
    [
        {"kv_cache_mib": "auto"},
        {"kv_cache_mib": 4096, "device": "cuda"},
        {"num_threads": 8},
        {"kv_cache_mib": 3840, "quantization": "none"},
        {"kv_cache_mib": 1 << 40, "num_pages": 8},  # which wins
    ],
)
def test_what_fits_or_cannot_be_known_is_not_doubted(engine: dict[str, Any]) -> None:
    assert list(doubts_about(cluster({}, engine), MACHINE)) == []


def test_tokens_and_ends_beyond_the_model_are_doubted(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model")
    add_token(path, 32, "<|turn|>")
    (path / "generation_config.json").write_text('{"eos_token_id": [0, 40]}')
    tokens, ends = doubts_about(ClusterConfig(model=ModelConfig(str(path))), MACHINE)
    assert tokens.startswith("model.path: the tokenizer has 1 token beyond the model, whose vocab_size is 32")
    assert ends == "model.path: 40 in eos_token_id: beyond the model's vocab_size = 32, so it ends no answer"
