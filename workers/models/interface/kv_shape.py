"""The shape and dtype of a rank's KV pool."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.kernels.pages.quantized_kv import head_bytes, page_tokens_of
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_spec import LanguageModelSpec
from slipstream.workers.models.directory.stored_quantization import KvCacheDtype
from slipstream.workers.models.sharding.rank_share import Rank

CODES: dict[KvCacheDtype, torch.dtype] = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def kv_dtype(kv_cache_dtype: KvCacheDtype, model_dtype: torch.dtype) -> torch.dtype:
    """The pool's dtype: that of codes where it is quantised (see `pages.quantized_kv`), else the model's."""
    return CODES.get(kv_cache_dtype, model_dtype)


def kv_shape(
    model: LanguageModelSpec, tp: Rank, num_pages: int, page_tokens: int, dtype: torch.dtype | None = None
) -> tuple[int, ...]:
    """[slots, pages, kv_heads of the rank, 2, page_tokens, head_dim], or where `dtype`, the pool's, is one of codes
    [slots, pages, kv_heads of the rank, head_bytes]; where layers differ or keys and values do
    [slots, pages, units of the rank, page_tokens * unit_numbers], and where nothing is stored of single tokens
    [1, pages, 1, numbers of a state] (see `kv_spec`). A slot is a layer, or one layer of each page group (see
    `page_groups`).

    Raises ModelError if the KV heads cannot be dealt out to the group, or if there are no such codes.
    """
    spec = model.kv
    units = tp.shard(spec.num_units, "num_key_value_heads")
    pages = (spec.page_groups.num_slots, num_pages, units.stop - units.start)
    if spec.is_state_only:
        itemsize = (getattr(torch, model.dtype) if dtype is None else dtype).itemsize
        return (1, num_pages, 1, -(-spec.state_bytes // itemsize))
    if dtype in CODES.values():
        if not spec.is_uniform:
            raise ModelError("kv_cache_dtype: only auto is supported where layers, or keys and values, differ in size")
        return (*pages, head_bytes(page_tokens, spec.head_dim))
    if not spec.is_uniform:
        return (*pages, page_tokens * spec.unit_numbers)
    return (*pages, 2, page_tokens, spec.head_dim)


def page_tokens_of_pool(kv: Tensor, model: LanguageModelSpec) -> int:
    """Tokens of a page of a pool that has the model's `kv_shape`; all that a sequence can have, where nothing is stored
    of them."""
    if model.kv.is_state_only:
        return model.max_position_embeddings
    if model.kv.is_uniform:
        return page_tokens_of(kv, model.kv.head_dim)
    return int(kv.shape[-1]) // model.kv.unit_numbers
