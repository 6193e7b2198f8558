"""The engine on a real GPU: recorded steps, kernels and all."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.router.protocol.messages import EngineRequest
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_engine, build_runner, engine_limits
from slipstream.workers.engine.execution.gpu.batch_buckets import batch_buckets
from slipstream.workers.engine.execution.gpu.gpu_runner import GpuRunner
from slipstream.workers.engine.plan.step_plan import StepPlan
from slipstream.workers.models.interface.step_arrays import SequenceSlice, StepArrays
from tests.support.workers.engine_driver import make_request, tokens_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
NUM_PAGES = 96


def config(device: str, pages: str = "auto") -> EngineConfig:
    return EngineConfig(
        dtype="float32",
        device=device,  # type: ignore[arg-type]
        num_pages=NUM_PAGES,
        max_model_len=128,
        max_num_seqs=12,
        max_step_tokens=64,
        cpu_kernels="off",
        kv_cache_dtype=pages,  # type: ignore[arg-type]
    )


def requests() -> list[EngineRequest]:
    rng = random.Random(3)
    sampling = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.8, "top_p": 0.7, "seed": 6}]
    return [
        make_request(
            f"r{i}",
            [rng.randrange(256) for _ in range(rng.randint(1, 60))],
            max_tokens=5 + i % 7,
            ignore_eos=True,
            **sampling[i % 3],
        )
        for i in range(20)
    ]


@pytest.mark.parametrize(
    ("family", "pages"),
    [("llama", "auto"), ("qwen3", "auto"), ("mistral", "auto"), ("llama", "int8"), ("llama", "fp8")],
)
def test_tokens_are_those_of_the_cpu(family: str, pages: str, tiny_model_dir: Callable[[str], Path]) -> None:
    model_dir = tiny_model_dir(family)
    found = []
    for device in ("cpu", "cuda"):
        settings = config(device, pages)
        runner = build_runner(model_dir, settings, NUM_PAGES)
        found.append(tokens_of(build_engine(engine_limits(model_dir, settings), runner), *requests()))
    assert found[0] == found[1]


def test_every_batch_size_is_recorded(tiny_model_dir: Callable[[str], Path]) -> None:
    runner = build_runner(tiny_model_dir("llama"), config("cuda"), NUM_PAGES)
    assert isinstance(runner, GpuRunner)
    assert runner.recorded_batches == batch_buckets(12)


@pytest.mark.parametrize("num_tokens", [1, 5])  # a recorded step, and one that goes kernel by kernel
def test_the_host_waits_only_for_the_tokens(tiny_model_dir: Callable[[str], Path], num_tokens: int) -> None:
    runner = build_runner(tiny_model_dir("llama"), config("cuda"), NUM_PAGES)
    tokens = (7,) * num_tokens
    slices = [SequenceSlice(3, tokens, np.array([page], np.int32).tobytes(), True) for page in (4, 9)]
    plan = StepPlan(StepArrays.build(slices, 16), greedy=True)
    expected = runner.execute(plan, []).token_ids
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = runner.execute(plan, []).token_ids
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert list(found) == list(expected)
