"""One rank's part of a step: model, KV pool and, on rank 0, sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.workers.engine.plan.step_plan import PageSend, SampledTokens, SamplingRow, SendProgress, StepPlan
from slipstream.workers.engine.sampling.prompt_scorer import (
    by_sequence,
    most_top,
    next_ids_of,
    reported,
    rows_of,
    scored_in_blocks,
)
from slipstream.workers.engine.sampling.sampler import Sampler, sampled_tokens
from slipstream.workers.models.interface.kv_shape import page_tokens_of_pool
from slipstream.workers.models.interface.model import GreedyModel, HiddenModel, Model
from slipstream.workers.models.interface.step_batch import StepBatch


class PageSink(Protocol):
    """Sends pages as they become complete; called on the computing thread."""

    def begin_sends(self, sends: tuple[PageSend, ...]) -> None: ...

    def layer_done(self, layer: int, progress: tuple[SendProgress, ...]) -> None:
        """`layer` is one of the pool's: a slot, of which all page groups' layers are complete."""


class ModelRunner:
    """Runs step plans on one rank. The rank whose model returns logits (rank 0) samples; the others return no tokens.

    `kv` is the rank's pool, `[layers, pages, ...]` (see `models.interface.kv_shape`).
    """

    def __init__(self, model: Model, kv: Tensor) -> None:
        self.kv = kv
        self.sink: PageSink | None = None
        self._device = kv.device
        self.model = model
        self._greedy_model = model if isinstance(model, GreedyModel) else None
        self._page_tokens = page_tokens_of_pool(kv, model.config)
        groups = model.config.kv.page_groups
        self._slots_after = None if groups.is_single else groups.last_layers()
        self._sampler = Sampler(model.config.vocab_size, kv.device)

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        """A token for each sequence that samples, in order; none on ranks other than 0."""
        for copy in plan.state_copies:
            self.kv[:, copy.to.tolist()] = self.kv[:, copy.source.tolist()]
        layer_done = self._begin_sends(plan)
        batch = StepBatch(plan.arrays, self._page_tokens, self._device)
        if plan.prompt_rows:
            return self._execute_scored(batch, plan, sampling, layer_done)
        if self._greedy_model is not None and plan.greedy and len(plan.arrays.sample_rows):
            best = self._greedy_model.greedy(batch, self.kv, layer_done)
            return SampledTokens() if best is None else sampled_tokens(best.token_ids, best.is_sound, None)
        with torch.inference_mode():
            logits = self.model.scores(batch, self.kv, layer_done)
            if logits is None:
                return SampledTokens()
            return self._sampled(logits, plan, sampling)

    def _sampled(self, logits: Tensor, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        return self._sampler.best(logits) if plan.greedy else self._sampler.sample(logits, sampling)

    @torch.inference_mode()
    def _execute_scored(
        self,
        batch: StepBatch,
        plan: StepPlan,
        sampling: Sequence[SamplingRow],
        layer_done: Callable[[int], None] | None,
    ) -> SampledTokens:
        """`execute` of a plan with prompt rows."""
        prompt_rows, vocab_size = plan.prompt_rows, self.model.config.vocab_size
        if isinstance(self.model, HiddenModel):
            hidden = self.model.forward(batch, self.kv, layer_done)
            numbers = scored_in_blocks(self.model.logits, hidden, prompt_rows, vocab_size)
            logits = self.model.logits(hidden[batch.sample_indices]) if len(plan.arrays.sample_rows) else None
        else:
            rows = rows_of(prompt_rows).astype(np.int32)
            arrays = replace(plan.arrays, sample_rows=np.concatenate((rows, plan.arrays.sample_rows)))
            both = self.model.scores(StepBatch(arrays, self._page_tokens, self._device), self.kv, layer_done)
            if both is None:
                return SampledTokens()
            next_ids = next_ids_of(prompt_rows).to(both.device)
            numbers = reported(both[: len(rows)], next_ids, most_top(prompt_rows, vocab_size))
            logits = both[len(rows) :] if len(plan.arrays.sample_rows) else None
        if numbers is None:
            return SampledTokens()
        sampled = SampledTokens() if logits is None else self._sampled(logits, plan, sampling)
        return replace(sampled, prompt_scores=tuple(by_sequence(numbers, prompt_rows)))

    def _begin_sends(self, plan: StepPlan) -> Callable[[int], None] | None:
        """Passes on the plan's sends. Returns what to call after each layer; None if no pages wait for that."""
        sink = self.sink
        if sink is None:
            return None
        if plan.sends:
            sink.begin_sends(plan.sends)
        progress = plan.progress
        if not progress:
            return None
        slots_after = self._slots_after
        if slots_after is None:
            return lambda layer: sink.layer_done(layer, progress)

        def layer_done(layer: int) -> None:
            for slot in slots_after[layer]:
                sink.layer_done(slot, progress)

        return layer_done

    def page_bytes(self) -> NDArray[np.uint8]:
        """The pool as bytes, `[layers, pages, kv_heads, head_bytes]`: the memory itself, for pages to come and go.

        Raises TypeError if the pool is not in host memory.
        """
        if self.kv.device.type != "cpu":
            raise TypeError(f"KV pages on {self.kv.device} are not host memory")
        layers, pages, heads = self.kv.shape[:3]
        as_bytes: NDArray[np.uint8] = self.kv.view(torch.uint8).view(layers, pages, heads, -1).numpy()
        return as_bytes
