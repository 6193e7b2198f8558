"""Layers of a cache over pages return what those of transformers do."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicIndexedLayer, DynamicLayer, DynamicSlidingWindowLayer
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4CSACache

from slipstream.workers.models.directory.kv_spec import LayerKv
from slipstream.workers.models.general.cached.cache_layout import CacheLayout
from slipstream.workers.models.general.cached.paged_layers import PagedCall, open_layers
from slipstream.workers.models.interface.page_layers import PageLayer

PAGE_TOKENS = 4
CHUNKS = (5, 3, 1, 7, 1)
HEADS, KEY_DIM, VALUE_DIM, INDEX_DIM = 2, 6, 4, 3


def _pages(heads: int, key_dim: int, value_dim: int, index_dim: int = INDEX_DIM) -> PageLayer:
    """Of twelve pages, full of numbers that must not be read."""
    shape = (12, 1, heads, PAGE_TOKENS)
    return PageLayer(*(torch.full((*shape, dim), torch.nan) for dim in (key_dim, value_dim, index_dim)))


def _new(num_seqs: int, num_tokens: int) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(num_seqs, HEADS, num_tokens, KEY_DIM),
        torch.randn(num_seqs, HEADS, num_tokens, VALUE_DIM),
    )


def _open(cache: DynamicCache, pages: tuple[PageLayer, ...], starts: list[int], num_new: int, table: Tensor) -> None:
    layout = CacheLayout("past_key_values", (0,), (LayerKv(HEADS, KEY_DIM, VALUE_DIM),), ())
    open_layers(cache, layout, pages, [PagedCall(starts, num_new, table, PAGE_TOKENS)] * len(pages))


def _one_layer(layer: DynamicLayer) -> DynamicCache:
    cache = DynamicCache()
    cache.layers.append(layer)
    return cache


def test_chunks_see_the_keys_and_values_that_transformers_keeps() -> None:
    for make in (DynamicLayer, lambda: DynamicSlidingWindowLayer(6)):
        torch.manual_seed(1)
        pages, expected, start = _pages(HEADS, KEY_DIM, VALUE_DIM), make(), 0
        table = torch.tensor([[7, 2, 9, 4, 11]])
        for num_new in CHUNKS:
            keys, values = _new(1, num_new)
            cache = _one_layer(make())
            _open(cache, (pages,), [start], num_new, table)
            assert cache.get_mask_sizes(num_new, 0) == expected.get_mask_sizes(num_new)
            found = cache.update(keys, values, 0)
            for own, theirs in zip(found, expected.update(keys, values), strict=True):
                assert torch.equal(own, theirs)
            start += num_new
            assert cache.get_seq_length() == expected.get_seq_length() == start


def test_keys_of_indexers_lie_beside_keys_and_values() -> None:
    torch.manual_seed(2)
    pages, expected, start = _pages(HEADS, KEY_DIM, VALUE_DIM), DynamicIndexedLayer(), 0
    table = torch.tensor([[7, 2, 9, 4, 11]])
    for num_new in CHUNKS:
        index_keys = torch.randn(1, num_new, HEADS * INDEX_DIM - 1)  # not a multiple of the heads
        cache = _one_layer(DynamicIndexedLayer())
        _open(cache, (pages,), [start], num_new, table)
        keys, values = _new(1, num_new)
        assert torch.equal(cache.update(keys, values, 0)[0], expected.update(keys, values)[0])
        assert torch.equal(cache.update_indexer(index_keys, 0), expected.update_indexer(index_keys))
        start += num_new


def test_layers_that_compress_get_what_all_runs_of_tokens_are_made_of() -> None:
    torch.manual_seed(3)
    config = DeepseekV4Config(sliding_window=6)
    pages, expected, start = _pages(1, KEY_DIM, VALUE_DIM, 14), DeepseekV4CSACache(config), 0
    table = torch.tensor([[7, 2, 9, 4, 11]])
    so_far = {"compressor": torch.empty(1, 0, 6), "indexer": torch.empty(1, 0, 8)}
    for num_new in CHUNKS:
        cache = _one_layer(DeepseekV4CSACache(config))
        _open(cache, (pages,), [start], num_new, table)
        for name, dim in (("compressor", 3), ("indexer", 4)):
            kv, gate = torch.randn(2, 1, num_new, dim)
            found = cache.layers[0].store_compression_weights(name, kv, gate)
            own_kv, own_gate, _ = expected.store_compression_weights(name, kv, gate)
            so_far[name] = torch.cat((so_far[name], torch.cat((own_kv, own_gate), -1)), 1)
            assert torch.equal(torch.cat(found[:2], -1), so_far[name])
            assert found[2] == 0
        start += num_new


def test_a_shorter_sequence_stands_behind_padding() -> None:
    pages = _pages(HEADS, KEY_DIM, VALUE_DIM)
    tables = torch.tensor([[3, 1], [5, 8]])
    before = []
    for row, num_tokens in enumerate((6, 2)):
        keys, values = _new(1, num_tokens)
        cache = _one_layer(DynamicLayer())
        _open(cache, (pages,), [0], num_tokens, tables[row : row + 1])
        cache.update(keys, values, 0)
        before.append(keys)
    keys, values = _new(2, 1)
    cache = _one_layer(DynamicLayer())
    _open(cache, (pages,), [6, 2], 1, tables)
    found, _ = cache.update(keys, values, 0)
    call = PagedCall([6, 2], 1, tables, PAGE_TOKENS)
    assert call.mask.tolist() == [[1] * 7, [0] * 4 + [1] * 3]
    assert call.positions.tolist() == [[6], [2]]
    for row, columns in enumerate((slice(0, 7), slice(4, 7))):
        assert torch.equal(found[row, :, columns], torch.cat((before[row][0], keys[row]), dim=1))
    assert torch.isfinite(found).all()
