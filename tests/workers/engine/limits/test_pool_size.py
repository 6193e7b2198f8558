"""The size of a pool as it is checked before the start, without torch, is that of the pool that is then made."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.limits.pool_size import (
    budget_source,
    elastic_num_pages,
    longest_sequence,
    page_bytes,
    stated_num_pages,
)
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.stored_quantization import KvCacheDtype
from slipstream.workers.models.interface.kv_shape import kv_dtype, kv_shape
from slipstream.workers.models.model_loader import TORCH_DTYPES
from slipstream.workers.models.sharding.rank_share import Rank


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("of_cache", ["auto", "fp8", "int8"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_pages_are_as_large_as_those_of_the_pool(
    tiny_model_dir: Callable[[str], Path], dtype: str, of_cache: KvCacheDtype, num_ranks: int
) -> None:
    model, rank = ModelConfig.read(tiny_model_dir("llama")), Rank(0, num_ranks)
    config = EngineConfig(dtype=dtype, kv_cache_dtype=of_cache, page_tokens=8)  # type: ignore[arg-type]
    of_pages = kv_dtype(of_cache, TORCH_DTYPES[dtype])  # type: ignore[index]
    assert page_bytes(model, config, rank) == math.prod(kv_shape(model, rank, 1, 8, of_pages)) * of_pages.itemsize


def test_the_number_of_pages_follows_from_memory_unless_it_is_stated(tiny_model_dir: Callable[[str], Path]) -> None:
    model = ModelConfig.read(tiny_model_dir("llama"))
    assert stated_num_pages(model, EngineConfig(num_pages=7, kv_cache_mib="auto"), Rank()) == 7
    assert stated_num_pages(model, EngineConfig(kv_cache_mib="auto"), Rank()) is None
    of_page = page_bytes(model, EngineConfig(), Rank())
    assert stated_num_pages(model, EngineConfig(kv_cache_mib=3), Rank()) == 3 * 2**20 // of_page


def test_without_a_length_it_is_what_the_model_allows_and_the_pool_holds(tiny_model_dir: Callable[[str], Path]) -> None:
    model = ModelConfig.read(tiny_model_dir("llama"))
    assert longest_sequence(model, EngineConfig(), 1000) == 512
    assert longest_sequence(model, EngineConfig(), 3) == 48
    with pytest.raises(EngineConfigError, match=r"num_pages 1 holds 1 tokens, which leaves no room for output"):
        longest_sequence(model, EngineConfig(num_pages=1, page_tokens=1), 1)


def test_an_elastic_pool_may_grow_to_the_whole_budget_of_its_host(tiny_model_dir: Callable[[str], Path]) -> None:
    model = ModelConfig.read(tiny_model_dir("llama"))
    of_page = page_bytes(model, EngineConfig(), Rank())
    assert elastic_num_pages(model, EngineConfig(), Rank(), 100 * of_page) == 100
    assert elastic_num_pages(model, EngineConfig(num_pages=7), Rank(), 100 * of_page) == 7
    few = EngineConfig(max_num_seqs=2, max_model_len=64)
    assert elastic_num_pages(model, few, Rank(), 100 * of_page) == 2 * 64 // 16
    of_group = page_bytes(model, EngineConfig(), Rank(0, 2)) * 2
    assert elastic_num_pages(model, EngineConfig(), Rank(0, 2), 100 * of_group) == 100


def test_what_a_budget_can_never_hold_is_refused_by_its_name(tiny_model_dir: Callable[[str], Path]) -> None:
    model = ModelConfig.read(tiny_model_dir("llama"))
    with pytest.raises(EngineConfigError, match=r"budget\.memory_gib .* does not hold a single page of"):
        elastic_num_pages(model, EngineConfig(), Rank(), 1000)
    with pytest.raises(EngineConfigError, match=r"max_model_len 512 is over the 48 tokens that budget\.memory_gib 2 h"):
        longest_sequence(model, EngineConfig(max_model_len=512), 3, budget_source(2 << 30))


def test_windows_make_pages_smaller_and_sequences_longer(tiny_model_dir: Callable[[str], Path]) -> None:
    model = ModelConfig.read(tiny_model_dir("qwen2_windowed"))  # one layer that sees all, two with a window of 24
    config = EngineConfig(page_tokens=4, max_step_tokens=16)
    assert page_bytes(model, config, Rank()) == math.prod(kv_shape(model, Rank(), 1, 4)) * 4
    # In each group with a window, 39 tokens at the most: those of a step and what the first of them sees.
    assert longest_sequence(model, config, 80) == 4 * (80 - 2 * 11)
    assert longest_sequence(model, config, 80, holds_prompts=True) == 4 * (80 // 3)
    assert longest_sequence(model, config, 1000) == 512
    with pytest.raises(EngineConfigError, match="max_model_len 300 is over the 232 tokens that num_pages 80 holds"):
        longest_sequence(model, EngineConfig(page_tokens=4, max_step_tokens=16, max_model_len=300, num_pages=80), 80)
