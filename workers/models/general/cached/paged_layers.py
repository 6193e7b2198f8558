"""Layers of a transformers `Cache` whose keys and values lie in pages.

Sequences of one call stand side by side with their last tokens aligned. A shorter one has padding in front, which an
attention mask hides. A column is a place in this arrangement:

    column       0  1  2  3  4  5  6
    sequence 0   0  1  2  3  4  5  6     positions; the last `num_new` tokens are those of the call
    sequence 1   .  .  .  0  1  2  3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)

from slipstream.workers.models.general.cached.cache_layout import CacheLayout, is_block_indexed, is_compressed
from slipstream.workers.models.interface.page_layers import PageLayer

POSITION_DIMS = 3  # of the positions that Qwen4-Exp keeps beside the keys of its indexers: time, height, width


class PagedCall:
    """Where the keys and values of the sequences of one call lie. `starts` are the tokens that they have already,
    `page_table` [sequences, pages] their pages, which include those of `num_new` tokens each."""

    def __init__(self, starts: list[int], num_new: int, page_table: Tensor, page_tokens: int) -> None:
        self.num_before = max(starts)  # columns
        self.num_new = num_new
        self._starts = torch.tensor(starts, device=page_table.device)[:, None]
        self._page_table = page_table
        self._page_tokens = page_tokens
        self._slots: dict[int, Tensor] = {}

    @property
    def num_columns(self) -> int:
        return self.num_before + self.num_new

    @property
    def positions(self) -> Tensor:
        """[sequences, num_new] of the tokens of this call"""
        return self._starts + torch.arange(self.num_new, device=self._starts.device)

    @property
    def positions_before(self) -> Tensor:
        """[sequences, columns] of the tokens before this call; 0 for padding"""
        columns = torch.arange(self.num_before, device=self._starts.device)
        return (columns - (self.num_before - self._starts)).clamp_min(0)

    @property
    def mask(self) -> Tensor:
        """[sequences, columns]: 1 for tokens, 0 for padding"""
        columns = torch.arange(self.num_columns, device=self._starts.device)
        return (columns >= self.num_before - self._starts).long()

    def slots_from(self, column: int) -> Tensor:
        """[sequences, columns]: places of the tokens from a column on. Padding has that of the last token."""
        slots = self._slots.get(column)
        if slots is None:
            positions = torch.arange(column, self.num_columns, device=self._starts.device) - (
                self.num_before - self._starts
            )
            last = self._starts + self.num_new - 1
            positions = torch.where(positions < 0, last, positions)
            pages = self._page_table.gather(1, torch.div(positions, self._page_tokens, rounding_mode="floor"))
            slots = self._slots[column] = pages * self._page_tokens + positions % self._page_tokens
        return slots


class _Paged(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """In front of a class of cache layer, it takes the place of that class's keys and values."""

    call: PagedCall
    pages: PageLayer
    is_updated: bool

    def open(self, call: PagedCall, pages: PageLayer) -> None:
        self.call, self.pages, self.is_updated = call, pages, False
        self.is_initialized = True

    @property
    def window(self) -> int | None:
        return self.sliding_window if isinstance(self, DynamicSlidingWindowLayer) else None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes [sequences, kv_heads, num_new, dim] each, and returns what the tokens of this call see."""
        del args, kwargs
        call = self.call
        new = call.slots_from(call.num_before).flatten()
        self.pages.write(key_states.transpose(1, 2).flatten(0, 1), value_states.transpose(1, 2).flatten(0, 1), new)
        self.is_updated = True
        keys, values = self.pages.read(call.slots_from(self._first_column))
        return keys.contiguous(), values.contiguous()  # as the library's own: some models view them in other shapes

    def get_seq_length(self) -> int:
        return self.call.num_columns if self.is_updated else self.call.num_before

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns that the call sees, and the first of them."""
        first = self._first_column
        return self.call.num_before - first + query_length, first

    @property
    def _first_column(self) -> int:
        return 0 if self.window is None else max(0, self.call.num_before - self.window + 1)


class PagedLayer(_Paged, DynamicLayer):  # type: ignore[no-untyped-call]
    pass


class PagedWindowLayer(_Paged, DynamicSlidingWindowLayer):  # type: ignore[no-untyped-call]
    pass


class PagedIndexedLayer(_Paged, DynamicIndexedLayer):  # type: ignore[no-untyped-call]
    """Of a model that chooses by the keys of an indexer which tokens it attends to."""

    def open(self, call: PagedCall, pages: PageLayer) -> None:
        super().open(call, pages)
        before = call.positions_before
        self.indexer_position_ids = before.expand(POSITION_DIMS, *before.shape) if call.num_before else None

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Writes [sequences, num_new, dim], and returns the keys of all tokens."""
        call, dim = self.call, indexer_key_states.shape[-1]
        self.pages.write_index(indexer_key_states.flatten(0, 1), call.slots_from(call.num_before).flatten())
        return self.pages.read_index(call.slots_from(0), dim).to(indexer_key_states.dtype)

    def update_index(self, idx_k: Tensor) -> Tensor:
        """`update_indexer` for layers like those of MiniMax M3, whose keys have a dimension of heads."""
        return self.update_indexer(idx_k[:, 0])[:, None]


class PagedCompressedLayer(_Paged, DynamicSlidingWindowLayer):  # type: ignore[no-untyped-call]
    """Of DeepSeek V4. It keeps what the entries for runs of tokens are made of, and they are made anew in each call."""

    def __init__(self, sliding_window: int, compress_rate: int) -> None:
        super().__init__(sliding_window)
        self.compress_rate = compress_rate
        self._num_used = 0  # numbers of a token, in the order in which the model asks

    def open(self, call: PagedCall, pages: PageLayer) -> None:
        super().open(call, pages)
        self._num_used = 0

    def store_compression_weights(self, name: str, kv: Tensor, gate: Tensor) -> tuple[Tensor, Tensor, int]:
        """Writes [sequences, num_new, dim] each. Returns those of all tokens in whole runs, and the first position."""
        new, call = torch.cat((kv, gate), dim=-1), self.call
        pages = self.pages.index_part(self._num_used, new.shape[-1])
        self._num_used += new.shape[-1]
        pages.write_index(new.flatten(0, 1), call.slots_from(call.num_before).flatten())
        usable = call.num_columns // self.compress_rate * self.compress_rate
        stored = pages.read_index(call.slots_from(0)[:, :usable], new.shape[-1]).to(new.dtype)
        return stored[..., : kv.shape[-1]], stored[..., kv.shape[-1] :], 0

    def update_compressor_states(self, name: str, compressed: Tensor) -> Tensor:
        """The entries of all runs."""
        return compressed

    def update_overlap_state(self, *args: object) -> tuple[None, None]:
        """What is before the first run."""
        return None, None


class PagedHybridLayer(  # type: ignore[no-untyped-call, misc, override]
    _Paged, LinearAttentionAndFullAttentionLayer
):
    pass


class PagedHybridWindowLayer(  # type: ignore[no-untyped-call, misc, override]
    _Paged, LinearAttentionAndSlidingWindowAttentionLayer
):
    pass


def open_layers(
    cache: DynamicCache, layout: CacheLayout, pages: tuple[PageLayer, ...], calls: Sequence[PagedCall]
) -> None:
    """Makes the layers of a cache read and write pages. `calls` say for each stored layer where
    its page group has the sequences."""
    if not layout.stored:
        return
    while len(cache.layers) < len(layout.stored):
        cache.layers.append(DynamicLayer())  # type: ignore[no-untyped-call]
    cache.layer_class_to_replicate = None
    for at, of_pages in enumerate(layout.stored):
        layer = cache.layers[at]
        if of_pages is None:
            if type(layer) in (DynamicLayer, PagedLayer):  # never written to, but some models ask it how long texts are
                cache.layers[at] = unused = PagedLayer()  # type: ignore[no-untyped-call]
                unused.open(calls[0], pages[0])
            continue
        if not isinstance(layer, _Paged):
            layer = cache.layers[at] = _with_pages(layer)
        layer.open(calls[of_pages], pages[of_pages])


def _with_pages(layer: object) -> _Paged:
    match layer:
        case LinearAttentionAndSlidingWindowAttentionLayer():
            return PagedHybridWindowLayer(layer.sliding_window, layer.number_of_states)
        case LinearAttentionAndFullAttentionLayer():
            return PagedHybridLayer(layer.number_of_states)
        case _ if isinstance(layer, DynamicIndexedLayer) or is_block_indexed(layer):
            return PagedIndexedLayer()  # type: ignore[no-untyped-call]
        case DynamicSlidingWindowLayer() if is_compressed(layer):
            return PagedCompressedLayer(layer.sliding_window, layer.compress_rate)  # type: ignore[attr-defined]
        case DynamicSlidingWindowLayer():
            return PagedWindowLayer(layer.sliding_window)
        case _:
            assert not isinstance(layer, DummyLayer)
            return PagedLayer()  # type: ignore[no-untyped-call]
