"""The shape of a rank's KV pool."""

from __future__ import annotations

from slipstream.workers.models.config import ModelConfig
from slipstream.workers.models.tensor_parallel import TensorParallel


def kv_shape(
    config: ModelConfig, tp: TensorParallel, num_pages: int, page_tokens: int
) -> tuple[int, int, int, int, int, int]:
    """[layers, pages, kv_heads of the rank, 2, page_tokens, head_dim].

    Raises ModelError if the KV heads cannot be dealt out to the group.
    """
    heads = tp.shard(config.num_kv_heads, "num_key_value_heads")
    return (config.num_layers, num_pages, heads.stop - heads.start, 2, page_tokens, config.head_dim)
