"""The shape and dtype of a rank's KV pool."""

from __future__ import annotations

import torch

from slipstream.kernels.pages.quantized_kv import head_bytes
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.rank_share import Rank
from slipstream.workers.models.directory.stored_quantization import KvCacheDtype

CODES: dict[KvCacheDtype, torch.dtype] = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def kv_dtype(kv_cache_dtype: KvCacheDtype, model_dtype: torch.dtype) -> torch.dtype:
    """The pool's dtype: that of codes where it is quantised (see `pages.quantized_kv`), else the model's."""
    return CODES.get(kv_cache_dtype, model_dtype)


def kv_shape(
    config: ModelConfig, tp: Rank, num_pages: int, page_tokens: int, dtype: torch.dtype | None = None
) -> tuple[int, ...]:
    """[layers, pages, kv_heads of the rank, 2, page_tokens, head_dim], or where `dtype`, the pool's, is one of codes
    [layers, pages, kv_heads of the rank, head_bytes].

    Raises ModelError if the KV heads cannot be dealt out to the group.
    """
    heads = tp.shard(config.num_kv_heads, "num_key_value_heads")
    pages = (config.num_layers, num_pages, heads.stop - heads.start)
    if dtype in CODES.values():
        return (*pages, head_bytes(page_tokens, config.head_dim))
    return (*pages, 2, page_tokens, config.head_dim)
