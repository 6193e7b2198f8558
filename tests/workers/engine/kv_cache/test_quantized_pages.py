"""Engines whose pages hold keys and values in eight bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_engine, build_runner, engine_limits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.models.native_model import NativeModel
from slipstream.workers.models.ops_model import OpsModel
from tests.support.workers.engine_driver import make_request, tokens_of

NAMES: tuple[Any, ...] = ("fp8", "int8")
KERNELS: tuple[Any, ...] = ("auto", "off")


@pytest.fixture
def model_dir(tiny_model_dir: Callable[[str], Path]) -> Path:
    return tiny_model_dir("llama")


def engine(model_dir: Path, **settings: Any) -> NativeEngine:
    config = EngineConfig(dtype="float32", num_threads=1, weight_cache_dir=None, **{"num_pages": 96, **settings})
    limits = engine_limits(model_dir, config)
    return build_engine(limits, build_runner(model_dir, config, limits.num_pages))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_tokens_do_not_depend_on_batch_chunks_or_preemption(name: Any, kernels: Any, model_dir: Path) -> None:
    def requests(salt: str) -> list[Any]:
        lengths = (1, 16, 33, 70)
        prompts = [[(7 * i + 3 * n) % 256 for i in range(length)] for n, length in enumerate(lengths)]
        return [
            make_request(f"{salt}{n}", prompt, max_tokens=12, ignore_eos=True, cache_salt=salt)
            for n, prompt in enumerate(prompts)
        ]

    roomy = engine(model_dir, cpu_kernels=kernels, kv_cache_dtype=name)
    alone = [tokens_of(roomy, request)[0] for request in requests("alone")]
    assert tokens_of(roomy, *requests("together")) == alone
    assert tokens_of(roomy, *requests("together")) == alone  # from the prefix cache
    assert roomy.stats().total_prefix_hit_tokens > 0
    tight = engine(
        model_dir, cpu_kernels=kernels, kv_cache_dtype=name, page_tokens=8, num_pages=11, prefix_caching=False
    )
    assert tokens_of(tight, *requests("tight")) == alone
    assert tight.stats().total_preemptions > 0


@pytest.mark.parametrize("name", NAMES)
def test_both_kernels_serve_it(name: Any, model_dir: Path) -> None:
    for kernels, model in (("auto", NativeModel), ("off", OpsModel)):
        config = EngineConfig(cpu_kernels=kernels, weight_cache_dir=None, kv_cache_dtype=name)
        runner = build_runner(model_dir, config, 4)
        assert isinstance(runner.model, model)
        assert runner.kv.dtype in (torch.int8, torch.float8_e4m3fn)
        assert runner.page_bytes().shape == (3, 4, 2, 2 * 16 * (16 + 4))


@pytest.mark.parametrize("name", NAMES)
def test_a_pool_of_codes_holds_more_pages_and_its_cache_is_not_that_of_another_dtype(
    name: Any, model_dir: Path
) -> None:
    plain, codes = (
        engine_limits(model_dir, EngineConfig(dtype="float32", kv_cache_mib=1, kv_cache_dtype=each))
        for each in ("auto", name)
    )
    assert plain.num_pages == 2**20 // (3 * 2 * 2 * 16 * 16 * 4)
    assert codes.num_pages == 2**20 // (3 * 2 * 2 * 16 * (16 + 4))
    assert plain.model_id != codes.model_id
    other = "int8" if name == "fp8" else "fp8"
    assert engine_limits(model_dir, EngineConfig(dtype="float32", kv_cache_dtype=other)).model_id != codes.model_id
