"""The size of a pool as it is checked before the start, without torch, is that of the pool that is then made."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.limits.pool_size import longest_sequence, page_bytes, stated_num_pages
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.rank_share import Rank
from slipstream.workers.models.directory.stored_quantization import KvCacheDtype
from slipstream.workers.models.interface.kv_shape import kv_dtype, kv_shape
from slipstream.workers.models.model_loader import TORCH_DTYPES


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
