"""Settings of the engines of others as settings of a deployment, and parameters of requests as texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.router.language_backends.forms.word_lists import words_of
from slipstream.router.language_backends.language_version import priority_of
from slipstream.router.language_backends.settings.engine_settings import TENSORRT_LLM, VLLM, EngineSettings
from slipstream.router.language_backends.settings.sampling_parameters import sampling_fields
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.model_spec import DynamicBatching, ModelSpec


def test_engine_arguments_of_vllm_become_settings_or_are_named() -> None:
    given: dict[str, Any] = {
        "max_model_len": 512,
        "dtype": "half",
        "tensor_parallel_size": "2",
        "enable_prefix_caching": "false",
        "quantization": "awq",
        "kv_cache_dtype": "fp8_e5m2",
        "gpu_memory_utilization": 0.5,
        "enforce_eager": True,
        "swap_space": None,
    }
    found = EngineSettings.of(VLLM, given)
    engine = {"max_model_len": 512, "dtype": "float16", "prefix_caching": False, "kv_cache_dtype": "fp8"}
    assert found.settings == {"engine": engine, "decode": {"tp": 2}}
    assert found.ignored == ("enforce_eager", "gpu_memory_utilization", "quantization")


def test_parameters_of_tensorrt_llm_bound_the_cache_and_choose_the_policy() -> None:
    given = {
        "max_tokens_in_paged_kv_cache": "2561",
        "batch_scheduler_policy": "guaranteed_no_evict",
        "enable_kv_cache_reuse": "true",
        "gpt_model_type": "inflight_fused_batching",
        "kv_cache_free_gpu_mem_fraction": "0.8",
        "max_attention_window_size": "",
    }
    found = EngineSettings.of(TENSORRT_LLM, given)
    engine = {"num_pages": 161, "scheduler_policy": "guaranteed_no_evict", "prefix_caching": True}
    assert found.settings == {"engine": engine}
    assert found.ignored == ("gpt_model_type", "kv_cache_free_gpu_mem_fraction")
    with pytest.raises(ValueError, match="max_tokens_in_paged_kv_cache cannot be read"):
        EngineSettings.of(TENSORRT_LLM, {"max_tokens_in_paged_kv_cache": "all"})


def test_parameters_may_be_texts() -> None:
    given = {"temperature": "0.5", "max_tokens": "7", "stop": '["a", "b"]', "ignore_eos": "False", "n": 2.0}
    fields = {"temperature": 0.5, "max_tokens": 7, "stop": ["a", "b"], "ignore_eos": False, "n": 2}
    assert sampling_fields(given) == fields
    assert sampling_fields({"stop": "end", "seed": None}) == {"stop": "end"}
    with pytest.raises(InferError, match="parameter 'ignore_eos' cannot be read, got 'maybe'"):
        sampling_fields({"ignore_eos": "maybe"})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, 2, 3, 2, 3, -1], ((1, 2), (3,))),
        ([1, 2, 2, -1], ((1, 2),)),
        ([0, -1], ()),
        ([0, 0], ()),
        ([], ()),
    ],
)
def test_words_are_read_from_tokens_and_their_ends(values: list[int], words: tuple[tuple[int, ...], ...]) -> None:
    assert words_of("stop_words_list", values) == words


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([5] * 5000 + list(range(1, 5001)), "has more than 4096 words"),
        ([5] * 5000 + [5000] + [-1] * 4999, "has words of more than 4096 tokens"),
    ],
)
def test_lists_of_words_that_would_take_the_time_of_others_are_refused(values: list[int], text: str) -> None:
    with pytest.raises(InferError, match=text):
        words_of("stop_words_list", values)


@pytest.mark.parametrize(("level", "priority"), [(0, 0), (1, -1), (2, 0), (3, 1), (9, 0)])
def test_a_priority_level_is_relative_to_the_default_one(level: int, priority: int) -> None:
    batching = DynamicBatching(priority_levels=3, default_priority_level=2)
    spec = ModelSpec("m", "1", Path(), "vllm", "", 0, (), (), b"{}", dynamic_batching=batching)
    assert priority_of(spec, level) == priority
    assert priority_of(replace(spec, dynamic_batching=None), level) == 0
