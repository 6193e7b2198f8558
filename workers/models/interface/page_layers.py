"""The layers of a pool as keys and values; `models.directory.kv_spec` says where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.workers.models.directory.kv_spec import KvSpec, LayerKv


@dataclass(frozen=True, slots=True)
class PageLayer:
    """Views of one layer of the pool: [pages, units, heads of a unit, page_tokens, key_dim or value_dim]."""

    keys: Tensor
    values: Tensor

    @property
    def page_tokens(self) -> int:
        return self.keys.shape[3]

    def write(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Stores [tokens, kv_heads, dim] each at `slots` [tokens]: page id * page_tokens + offset."""
        pages = torch.div(slots, self.page_tokens, rounding_mode="floor")
        offsets = slots - pages * self.page_tokens
        for stored, new in ((self.keys, keys), (self.values, values)):
            units, heads = stored.shape[1:3]
            stored[pages, :, :, offsets] = new.reshape(len(new), units, heads, stored.shape[4]).to(stored.dtype)

    def gather(self, page_ids: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `num_tokens` tokens of these pages: [kv_heads, num_tokens, dim] each."""
        keys, values = (
            stored[page_ids].permute(1, 2, 0, 3, 4).flatten(2, 3).flatten(0, 1)[:, :num_tokens]
            for stored in (self.keys, self.values)
        )
        return keys, values

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values at `slots` [sequences, tokens]: [sequences, kv_heads, tokens, dim] each."""
        pages = torch.div(slots, self.page_tokens, rounding_mode="floor")
        offsets = slots - pages * self.page_tokens
        keys, values = (
            stored[pages, :, :, offsets].flatten(2, 3).transpose(1, 2) for stored in (self.keys, self.values)
        )
        return keys, values


def page_layers(kv: Tensor, layers: Sequence[LayerKv], num_units: int, page_tokens: int) -> tuple[PageLayer, ...]:
    """One for each of `layers`, with the heads of one rank. `kv` is the rank's pool, [slots, pages, units, ...]."""
    if not layers:
        return ()
    flat = kv.view(kv.shape[0], kv.shape[1], num_units, -1)
    views = []
    for (_, slot), stored in zip(KvSpec(tuple(layers)).page_groups.places, layers, strict=True):
        layer = flat[slot]
        of_keys, of_head = page_tokens * stored.key_dim, page_tokens * (stored.key_dim + stored.value_dim)
        shape = (layer.shape[0], num_units, stored.num_heads // num_units, page_tokens)
        strides = (*layer.stride()[:2], of_head)
        first = layer.storage_offset()
        views.append(
            PageLayer(
                layer.as_strided((*shape, stored.key_dim), (*strides, stored.key_dim, 1), first),
                layer.as_strided((*shape, stored.value_dim), (*strides, stored.value_dim, 1), first + of_keys),
            )
        )
    return tuple(views)
