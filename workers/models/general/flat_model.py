"""A transformers model that computes a step as one flat batch, [1, tokens], over the rank's pages."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.general.attention.flat_attention import FlatAttention
from slipstream.workers.models.general.pretrained import takes
from slipstream.workers.models.general.registered import register_attention, set_attention
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel


class FlatModel:
    """A `Model`. All ranks of its group call the same methods with the same batch."""

    def __init__(self, spec: GeneralSpec, model: PreTrainedModel, attention: FlatAttention, tp: TensorParallel) -> None:
        self.spec = spec
        self.model = model
        self.tp = tp
        self.dtype = model.dtype
        self.device = model.device
        self._attention = attention
        self._keeps_rows = takes(model, "logits_to_keep")
        set_attention(model, register_attention(attention))
        # Transformers would look for it in each step's tokens, to warn of a mask that is missing.
        vars(model.config)["pad_token_id"] = None  # some classes have it checked, and want a number

    @property
    def config(self) -> GeneralSpec:
        return self.spec

    @torch.inference_mode()
    def scores(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor | None:
        """Computes a step; its keys and values are written into `kv`, and `layer_done` is called as soon as those of a
        layer are there. Returns [n, vocab_size] in float32 for the rows that sample; None where there are none, and on
        ranks other than 0."""
        rows = batch.sample_indices
        # As indices: a number would make Gemma 4 leave out other tokens in the middle of the model.
        kept = rows if len(rows) else batch.positions.new_zeros(1)
        with self._attention.step(batch, kv, layer_done):
            logits = self.run(batch.token_ids, batch.positions, kept)
        if not len(rows) or self.tp.rank:
            return None
        return logits[:, : self.spec.vocab_size].float()

    def run(self, token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Scores of `rows` of a flat batch, [n, vocab_size] of the model's output layer."""
        options = {"logits_to_keep": rows} if self._keeps_rows else {}
        logits: Tensor = self.model(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **options
        ).logits[0]
        return logits if self._keeps_rows else logits[rows]
