"""A transformers model that computes a step call by call, each with a `Cache` over the rank's pages. Its own attention
does the rest."""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.general.cached.cache_layout import CacheLayout, call
from slipstream.workers.models.general.cached.paged_layers import PagedCall, open_layers
from slipstream.workers.models.general.cached.state_pages import StatePages
from slipstream.workers.models.general.cached.states import forget_states, new_cache
from slipstream.workers.models.interface.page_layers import PageLayer, page_layers
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel

MAX_PADDING = 2  # a sequence stands beside one that is so many times as long, at most


class CachedModel:
    """A `Model` on one rank. Sequences that decode are computed side by side if `can_batch`, others one by one; and
    if not `can_continue`, with their tokens one by one, because the model forgets its state when it gets several."""

    def __init__(self, spec: GeneralSpec, model: PreTrainedModel, layout: CacheLayout, page_tokens: int) -> None:
        self.spec = spec
        self.model = model
        self.tp = TensorParallel()
        self.dtype = model.dtype
        self.device = model.device
        self.can_batch = self.can_continue = True
        self._layout = layout
        self._page_tokens = page_tokens
        parameters = inspect.signature(model.forward).parameters
        # States have no padding, and some models multiply it by the mask all the same.
        self._takes_mask = "attention_mask" in parameters and not spec.kv.is_state_only
        self._takes_positions = "position_ids" in parameters
        self._keeps_rows = "logits_to_keep" in parameters
        self._pool: Tensor | None = None
        self._layers: tuple[PageLayer, ...] = ()
        self._places = spec.kv.page_groups.places  # group and slot of each stored layer
        self._state_pages: StatePages | None = None

    @property
    def config(self) -> GeneralSpec:
        return self.spec

    @torch.inference_mode()
    def scores(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor | None:
        """Computes a step; its keys, values and states are written into `kv`. Then `layer_done` is called for each
        stored layer. Returns [n, vocab_size] in float32 for the rows that sample; None where there are none."""
        if self._pool is not kv:
            self._open(kv)
        wanted = batch.arrays.sample_rows.tolist()
        ends = batch.arrays.query_starts[1:].tolist()
        num_kept = _num_kept(wanted, ends)
        found: dict[int, Tensor] = {}  # by row of the step
        for sequences in self._calls(batch):
            most = max(num_kept[sequence] for sequence in sequences)
            for sequence, scores in zip(sequences, self._compute(batch, sequences, most), strict=True):
                found |= zip(range(ends[sequence] - most, ends[sequence]), scores, strict=True)
        if layer_done is not None:
            for layer in range(max(len(self.spec.kv.layers), 1)):
                layer_done(layer)
        if not wanted:
            return None
        return torch.stack([found[row] for row in wanted])[:, : self.spec.vocab_size].float()

    def _open(self, kv: Tensor) -> None:
        self._pool = kv
        self._layers = page_layers(kv, self.spec.kv.layers, self.spec.kv.num_units, self._page_tokens)
        self._state_pages = StatePages(self._layout, self.model, kv) if self._layout.states else None

    def _calls(self, batch: StepBatch) -> Iterator[list[int]]:
        """Which sequences of a step are computed together."""
        decoding: list[int] = []
        for row, (num_new, kv_len) in enumerate(zip(batch.query_lens, batch.kv_lens, strict=True)):
            if self.can_batch and num_new == 1 < kv_len:
                decoding.append(row)
            else:
                yield [row]
        decoding.sort(key=lambda row: batch.kv_lens[row])
        while decoding:
            longest = MAX_PADDING * batch.kv_lens[decoding[0]]
            together = [row for row in decoding if batch.kv_lens[row] <= longest]
            yield together
            decoding = decoding[len(together) :]

    def _compute(self, batch: StepBatch, rows: list[int], num_kept: int) -> Tensor:
        """The scores of the last `num_kept` tokens of some sequences, of which as many tokens are computed:
        [rows, num_kept, vocabulary]."""
        num_new = batch.query_lens[rows[0]]
        starts = [batch.kv_lens[row] - num_new for row in rows]
        firsts = batch.arrays.query_starts[rows].tolist()
        tokens = torch.stack([batch.token_ids[first : first + num_new] for first in firsts])
        tables = [group.page_table[rows].to(self.device) for group in batch.groups]
        at_a_time = num_new if self.can_continue or not starts[0] else 1
        cache, states = new_cache(self.model, self._layout.argument), self._state_pages
        if states is not None:
            forget_states(self.model)
        kept: list[Tensor] = []
        for done in range(0, num_new, at_a_time):
            so_far = [start + done for start in starts]
            calls = [PagedCall(so_far, at_a_time, table, self._page_tokens) for table in tables]
            open_layers(cache, self._layout, self._layers, [calls[group] for group, _ in self._places])
            if states is not None and starts[0] and not done:
                states.load(cache, self._pages_of_states(batch)[rows])
            of_call = min(num_kept, at_a_time)
            scores = self._call(cache, calls[0], tokens[:, done : done + at_a_time], of_call)
            if done + at_a_time > num_new - num_kept:
                kept.append(scores)
        if states is not None:
            states.store(cache, self._pages_of_states(batch)[rows])
        return kept[0] if len(kept) == 1 else torch.cat(kept, dim=1)

    def _call(self, cache: Any, place: PagedCall, tokens: Tensor, num_kept: int) -> Tensor:
        """The scores of the last `num_kept` tokens, [sequences, num_kept, vocabulary]."""
        arguments: dict[str, Any] = {"input_ids": tokens}
        if len(tokens) > 1 and self._takes_mask:
            arguments["attention_mask"] = place.mask
        if self._takes_positions:  # some take them from the cache, but not all that have layers with states
            arguments["position_ids"] = place.positions
        if self._keeps_rows:
            arguments["logits_to_keep"] = num_kept
        logits: Tensor = call(self.model, self._layout.argument, cache, **arguments).logits
        return logits[:, -num_kept:]

    def _pages_of_states(self, batch: StepBatch) -> Tensor:
        """[sequences, pages]"""
        return batch.page_table[:, :1].to(self.device) if self.spec.kv.is_state_only else batch.state_pages


def _num_kept(wanted: Iterable[int], ends: list[int]) -> list[int]:
    """Of how many last tokens of each sequence the scores are needed, so that the `wanted` rows are among them: at
    least one. `ends` are the rows behind the sequences."""
    num_kept = [1] * len(ends)
    for row in wanted:
        sequence = bisect_right(ends, row)
        num_kept[sequence] = max(num_kept[sequence], ends[sequence] - row)
    return num_kept
