"""From settings to an engine that is ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.kernels.cpu.native_library import native_library
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine import engine_builder as build
from slipstream.workers.engine.engine_builder import build_engine, build_runner, engine_limits, warm_up
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan
from slipstream.workers.models.directory.json_keys import ModelError
from tests.support.workers.engine_driver import make_limits, make_request, tokens_of
from tests.support.workers.fake_executor import FakeExecutor
from tests.support.workers.tiny_models import EOS_ID, VOCAB_SIZE

# The tiny llama: 3 layers, 2 KV heads of 16, so a page of 16 tokens is 3 * 2 * 2 * 16 * 16 numbers.
PAGE_NUMBERS = 3 * 2 * 2 * 16 * 16


@pytest.fixture
def model_dir(tiny_model_dir: Callable[[str], Path]) -> Path:
    return tiny_model_dir("llama")


@pytest.mark.parametrize(("dtype", "num_bytes"), [("auto", 4), ("float32", 4), ("bfloat16", 2)])
def test_pool_is_as_large_as_its_memory(model_dir: Path, dtype: Any, num_bytes: int) -> None:
    limits = engine_limits(model_dir, EngineConfig(dtype=dtype, kv_cache_mib=1))
    assert limits.num_pages == 2**20 // (PAGE_NUMBERS * num_bytes)
    assert limits.max_model_len == 512  # the model's
    assert (limits.vocab_size, limits.eos_token_ids) == (VOCAB_SIZE, (EOS_ID,))


def test_small_pool_bounds_the_model_length(model_dir: Path) -> None:
    assert engine_limits(model_dir, EngineConfig(num_pages=5)).max_model_len == 80


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 513}, "max_model_len 513 is over the model's 512 positions"),
        ({"max_model_len": 100, "num_pages": 6}, "max_model_len 100 is over the 96 tokens that num_pages 6 holds"),
        ({"page_tokens": 2000, "kv_cache_mib": 1}, "kv_cache_mib 1 does not hold a single page"),
        ({"max_model_len": 1}, "max_model_len must be at least 2"),
    ],
)
def test_settings_that_do_not_fit_are_named(model_dir: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineConfigError, match=message):
        engine_limits(model_dir, EngineConfig(**settings))


def test_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        engine_limits(tmp_path, EngineConfig())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_that_is_not_there_is_named(model_dir: Path) -> None:
    with pytest.raises(EngineConfigError, match="device cuda"):
        build_runner(model_dir, EngineConfig(device="cuda"), 8)


def test_engine_is_warm_and_empty_when_built(model_dir: Path) -> None:
    config = EngineConfig(num_pages=32)
    limits = engine_limits(model_dir, config)
    runner = build_runner(model_dir, config, limits.num_pages)
    assert not runner.kv.any()
    engine = build_engine(limits, runner)
    assert runner.kv.any()
    assert (engine.keys(), engine.page_counts()["free"], engine.stats().total_steps) == ([], 32, 0)
    assert len(tokens_of(engine, make_request("a", [1, 2, 3]))[0]) == 8


@pytest.mark.parametrize("overrides", [{"max_model_len": 2}, {"num_pages": 10, "max_step_tokens": 1}, {}])
def test_smallest_engines_warm_up(overrides: dict[str, Any]) -> None:
    limits = make_limits(**overrides)
    warm_up(limits, FakeExecutor(limits.num_pages, limits.page_tokens, limits.vocab_size))


def test_executor_without_tokens_does_not_pass_as_ready() -> None:
    class Broken:
        def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
            raise RuntimeError("no device")

    with pytest.raises(RuntimeError, match="no device"):
        build_engine(make_limits(), Broken())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_page_bytes_are_the_memory_of_the_pool(model_dir: Path, dtype: Any) -> None:
    runner = build_runner(model_dir, EngineConfig(dtype=dtype), 8)
    page_bytes = runner.page_bytes()
    head_bytes = 2 * 16 * 16 * runner.kv.element_size()
    assert page_bytes.shape == (3, 8, 2, head_bytes)
    assert page_bytes.dtype == np.uint8
    values = torch.arange(2 * 16 * 16).to(runner.kv.dtype)
    page_bytes[1, 5, 1] = values.view(torch.uint8).numpy()
    assert torch.equal(runner.kv[1, 5, 1].flatten(), values)
    assert int(runner.kv.count_nonzero()) == 2 * 16 * 16 - 1


def test_pages_elsewhere_than_in_host_memory_have_no_bytes(model_dir: Path) -> None:
    runner = build_runner(model_dir, EngineConfig(), 8)
    elsewhere = ModelRunner(runner.model, torch.empty(3, 8, 2, 2, 16, 16, device="meta"))
    with pytest.raises(TypeError, match="meta"):
        elsewhere.page_bytes()


def test_half_precision_generates_in_chunks_and_leaves_only_numbers_in_the_pool(model_dir: Path) -> None:
    config = EngineConfig(dtype="bfloat16", num_pages=64, max_step_tokens=7)
    runner = build_runner(model_dir, config, 64)
    engine = build_engine(engine_limits(model_dir, config), runner)
    [tokens] = tokens_of(engine, make_request("a", range(50), max_tokens=6, ignore_eos=True))
    assert len(tokens) == 6
    assert runner.kv.isfinite().all()


def test_without_a_home_the_weights_are_kept_in_memory(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if native_library() is None:
        pytest.skip("no native library here")

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build, "default_directory", no_home)
    config = EngineConfig(dtype="float32", num_pages=8, num_threads=1)
    build_runner(model_dir, config, 8)
    assert "weight_cache_dir auto: Could not determine home directory." in caplog.text
