"""The states of sequences as bytes in pages: read into a transformers `Cache` before a call, written back after it.

state page 0: layer 0 | layer 1 | ...      state page 1: layer 0 | ...        bytes of the state, one after the other
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slipstream.workers.models.general.cached.cache_layout import CacheLayout
from slipstream.workers.models.general.cached.states import get_states, set_state


class StatePages:
    """The states of one model in its pool `kv`, [layers, pages, ...]."""

    def __init__(self, layout: CacheLayout, model: PreTrainedModel, kv: Tensor) -> None:
        self._states = layout.states
        self._model, self._modules = model, list(model.modules())
        self._pages = kv.view(*kv.shape[:2], -1).view(torch.uint8)  # [layers, pages, bytes]
        self._page_bytes = self._pages.shape[0] * self._pages.shape[2]

    def load(self, cache: Any, page_ids: Tensor) -> None:
        """Gives an empty cache the states in `page_ids` [sequences, pages of a state]."""
        num_seqs, num_pages = page_ids.shape
        stored = self._pages[:, page_ids.flatten()].transpose(0, 1).reshape(num_seqs, num_pages * self._page_bytes)
        first = 0
        for state in self._states:
            of_state = stored[:, first : first + state.num_bytes].contiguous().view(state.dtype)
            set_state(self._modules, cache, state, of_state.view(num_seqs, *state.shape))
            first += state.room_bytes

    def store(self, cache: Any, page_ids: Tensor) -> None:
        """Writes the states of the cache's sequences into their pages."""
        num_seqs, num_pages = page_ids.shape
        written = torch.zeros(num_seqs, num_pages * self._page_bytes, dtype=torch.uint8, device=self._pages.device)
        first = 0
        values = get_states(self._model, cache, self._states)
        for state, value in zip(self._states, values, strict=True):
            of_state = value.to(state.dtype).reshape(num_seqs, -1).contiguous()
            written[:, first : first + state.num_bytes] = of_state.view(torch.uint8)
            first += state.room_bytes
        layers, _, of_layer = self._pages.shape
        self._pages[:, page_ids.flatten()] = written.view(num_seqs * num_pages, layers, of_layer).transpose(0, 1)
