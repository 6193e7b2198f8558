"""The layers of a pool as keys and values; `models.directory.kv_spec` says where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.workers.models.directory.kv_spec import KvSpec, LayerKv


@dataclass(frozen=True, slots=True)
class PageLayer:
    """Views of one layer of the pool: [pages, units, heads of a unit, page_tokens, key_dim, value_dim or index_dim]."""

    keys: Tensor
    values: Tensor
    index_keys: Tensor

    @property
    def page_tokens(self) -> int:
        return self.keys.shape[3]

    def write(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Stores [tokens, kv_heads, dim] each at `slots` [tokens]: page id * page_tokens + offset."""
        self._write(((self.keys, keys), (self.values, values)), slots)

    def write_index(self, index_keys: Tensor, slots: Tensor) -> None:
        """Stores an indexer's keys [tokens, numbers] at `slots`: a run of them in each head."""
        units, heads, dim = self.index_keys.shape[1], self.index_keys.shape[2], self.index_keys.shape[4]
        padding = units * heads * dim - index_keys.shape[1]
        new = torch.nn.functional.pad(index_keys, (0, padding)).view(-1, units * heads, dim)
        self._write(((self.index_keys, new),), slots)

    def gather(self, page_ids: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `num_tokens` tokens of these pages: [kv_heads, num_tokens, dim] each."""
        keys, values = (
            stored[page_ids].permute(1, 2, 0, 3, 4).flatten(2, 3).flatten(0, 1)[:, :num_tokens]
            for stored in (self.keys, self.values)
        )
        return keys, values

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values at `slots` [sequences, tokens]: [sequences, kv_heads, tokens, dim] each."""
        return self._read(self.keys, slots).transpose(1, 2), self._read(self.values, slots).transpose(1, 2)

    def read_index(self, slots: Tensor, numbers: int) -> Tensor:
        """An indexer's keys at `slots` [sequences, tokens]: [sequences, tokens, numbers]."""
        return self._read(self.index_keys, slots).flatten(2)[..., :numbers]

    def index_part(self, first: int, numbers: int) -> PageLayer:
        """Of a layer with one head, with a part of what it keeps as an indexer's keys."""
        return PageLayer(self.keys, self.values, self.index_keys[..., first : first + numbers])

    def _write(self, pairs: Sequence[tuple[Tensor, Tensor]], slots: Tensor) -> None:
        pages = torch.div(slots, self.page_tokens, rounding_mode="floor")
        offsets = slots - pages * self.page_tokens
        for stored, new in pairs:
            units, heads = stored.shape[1:3]
            stored[pages, :, :, offsets] = new.reshape(len(new), units, heads, stored.shape[4]).to(stored.dtype)

    def _read(self, stored: Tensor, slots: Tensor) -> Tensor:
        """[sequences, tokens, kv_heads, dim]"""
        pages = torch.div(slots, self.page_tokens, rounding_mode="floor")
        return stored[pages, :, :, slots - pages * self.page_tokens].flatten(2, 3)


def page_layers(kv: Tensor, layers: Sequence[LayerKv], num_units: int, page_tokens: int) -> tuple[PageLayer, ...]:
    """One for each of `layers`, with the heads of one rank. `kv` is the rank's pool, [slots, pages, units, ...]."""
    if not layers:
        return ()
    flat = kv.view(kv.shape[0], kv.shape[1], num_units, -1)
    views = []
    for (_, slot), stored in zip(KvSpec(tuple(layers)).page_groups.places, layers, strict=True):
        layer = flat[slot]
        of_head = page_tokens * (stored.key_dim + stored.value_dim + stored.index_dim)
        parts, first = [], layer.storage_offset()
        for dim in (stored.key_dim, stored.value_dim, stored.index_dim):
            shape = (layer.shape[0], num_units, stored.num_heads // num_units, page_tokens, dim)
            parts.append(layer.as_strided(shape, (*layer.stride()[:2], of_head, dim, 1), first))
            first += page_tokens * dim
        views.append(PageLayer(*parts))
    return tuple(views)
