"""What `check` warns of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.cluster_config import ClusterConfig, RayConfig
from slipstream.cluster.config.loading import config_warnings as warnings_module
from slipstream.cluster.config.loading.config_warnings import Machine, missing_parts, warnings_about
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.config.pool_config import PoolConfig
from slipstream.cluster.repository.memory_need import memory_parts
from slipstream.workers.config.worker_config import EngineConfig
from tests.cluster.config.loading.test_config_file import add_token, write_model

MACHINE = Machine(memory_bytes=4096 * 2**20, num_cores=8)


def cluster(prefill: dict[str, Any], decode: dict[str, Any], **pool: int) -> ClusterConfig:
    return ClusterConfig(
        model=ServedModelConfig("models/m"),
        prefill=PoolConfig(engine=EngineConfig(**prefill), **pool),
        decode=PoolConfig(engine=EngineConfig(**decode)),
    )


@pytest.mark.parametrize(
    ("config", "doubt"),
    [
        (cluster({"quantization": "fp8"}, {}), "quantization is fp8 for prefill and none for decode"),
        (
            cluster({}, {"kv_cache_mib": 4097}),
            "decode.engine.kv_cache_mib is 4097, and this machine has 4096 MiB of memory",
        ),
        (
            cluster({"kv_cache_mib": 2048}, {"kv_cache_mib": 2049}),
            "together 4577 MiB at least, and this machine has 4096",
        ),
        (
            cluster({"num_threads": 9}, {"num_threads": 9}),
            "prefill.engine.num_threads is 9, and this process may use 8 cores",
        ),
        (
            ClusterConfig(model=ServedModelConfig("models/m"), ray=RayConfig(object_store_mib=4097)),
            "ray.object_store_mib is 4097, and this machine has 4096 MiB of memory",
        ),
        (
            replace(cluster({"kv_cache_mib": 4097}, {}), budget=BudgetConfig(memory_gib=4.0)),
            "budget.memory_gib is 4 (4096 MiB), prefill.replicas is 1 (240 MiB), decode.replicas is 1 (240 MiB): "
            "together 4576 MiB at least",
        ),
        (
            cluster({"kv_cache_mib": 1024}, {}, replicas=2, tp=2),
            "prefill.replicas is 2 (4 x 240 MiB), prefill.engine.kv_cache_mib is 1024 (4 x 1024 MiB), "
            "decode.replicas is 1 (240 MiB), decode.engine.kv_cache_mib is 256 (256 MiB): together 5552 MiB",
        ),
    ],
)
def test_each_doubt_names_its_key_and_what_is_there(config: ClusterConfig, doubt: str) -> None:
    [warning] = warnings_about(config, MACHINE)
    assert doubt in warning


DEMO_CONFIG = Path(__file__).parents[4] / "models/slipstream-demo/config.json"  # of a model in bfloat16


def test_the_limit_of_a_container_is_named_with_the_model_and_every_pool(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(DEMO_CONFIG.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(bytes(3 * 2**20))
    config = ClusterConfig(
        model=ServedModelConfig(str(tmp_path)),
        prefill=PoolConfig(engine=EngineConfig(kv_cache_mib=64)),
        decode=PoolConfig(engine=EngineConfig(kv_cache_mib=64), replicas=2),
    )
    limited = Machine(914 * 2**20, 1, "/sys/fs/cgroup/memory.max")
    asked = (
        "the weights in model.path (3 MiB), prefill.replicas is 1 (240 MiB), "
        "prefill.engine.kv_cache_mib is 64 (64 MiB), decode.replicas is 2 (2 x 240 MiB), "
        "decode.engine.kv_cache_mib is 64 (2 x 64 MiB)"
    )
    [warning] = warnings_about(config, limited)
    assert warning.startswith(f"{asked}: together 915 MiB at least, and the memory limit of this container is 914 MiB")
    assert "/sys/fs/cgroup/memory.max" in warning
    assert list(warnings_about(config, Machine(915 * 2**20, 1, "/sys/fs/cgroup/memory.max"))) == []


def test_pages_by_number_count_with_their_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(DEMO_CONFIG.read_bytes())
    engine = EngineConfig(num_pages=10**6)
    config = ClusterConfig(model=ServedModelConfig(str(tmp_path)), prefill=PoolConfig(engine=engine))
    [warning] = warnings_about(config, MACHINE)
    assert warning.startswith("prefill.engine.num_pages is 1000000, and this machine has 4096 MiB")


@pytest.mark.parametrize(
    ("engine", "num_mib"),
    [({}, 8), ({"dtype": "float32"}, 16), ({"quantization": "int8"}, 4), ({"quantization": "int4"}, 2)],
)
def test_only_the_weights_that_are_loaded_count_in_the_form_that_is_kept(
    tmp_path: Path, engine: dict[str, Any], num_mib: int
) -> None:
    (tmp_path / "config.json").write_bytes(DEMO_CONFIG.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(bytes(8 * 2**20))
    (tmp_path / "old.safetensors").write_bytes(bytes(8 * 2**20))
    pool = PoolConfig(engine=EngineConfig(**engine))
    weights = next(memory_parts(ClusterConfig(model=ServedModelConfig(str(tmp_path)), prefill=pool, decode=pool)))
    assert weights.mib == num_mib


@pytest.mark.parametrize(
    "engine",
    [
        {"kv_cache_mib": "auto"},
        {"kv_cache_mib": 4096, "device": "cuda"},
        {"num_threads": 8},
        {"kv_cache_mib": 3360, "quantization": "none"},
        {"kv_cache_mib": 1 << 40, "num_pages": 8},  # which wins
    ],
)
def test_what_fits_or_cannot_be_known_is_not_doubted(engine: dict[str, Any]) -> None:
    assert list(warnings_about(cluster({}, engine), MACHINE)) == []


def test_tokens_and_ends_beyond_the_model_are_doubted(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model")
    add_token(path, 32, "<|turn|>")
    (path / "generation_config.json").write_text('{"eos_token_id": [0, 40]}')
    tokens, ends = warnings_about(ClusterConfig(model=ServedModelConfig(str(path))), MACHINE)
    assert tokens.startswith("model.path: the tokenizer has 1 token beyond the model, whose vocab_size is 32")
    assert ends == "model.path: 40 in eos_token_id: beyond the model's vocab_size = 32, so it ends no answer"


def test_parts_that_are_not_installed_are_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings_module, "has_ucx", lambda: False)
    monkeypatch.setattr(
        warnings_module, "why_not_native", lambda: "they are built for x86-64 Linux, and this is aarch64 Linux"
    )
    ucx, kernels = missing_parts(cluster({}, {}))
    assert ucx.startswith("UCX is not installed (pip install")
    assert ucx.endswith("KV pages go through shared memory, which serves one host")
    assert kernels.startswith("no native CPU kernels (they are built for x86-64 Linux, and this is aarch64 Linux)")
    assert len(list(missing_parts(cluster({"device": "cuda"}, {"cpu_kernels": "off"})))) == 1  # neither would use them
    monkeypatch.setattr(warnings_module, "has_ucx", lambda: True)
    monkeypatch.setattr(warnings_module, "why_not_native", lambda: None)
    assert list(missing_parts(cluster({}, {}))) == []
