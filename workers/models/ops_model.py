"""A decoder that computes with torch or Triton, op by op."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from slipstream.kernels.elementwise.softcap import softcap
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.interface.decoder import Decoder
from slipstream.workers.models.interface.grouped_step import begin_groups
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel


class OpsModel:
    """A `Model`. What it computes with is `decoder.ops`."""

    def __init__(self, config: ModelConfig, decoder: Decoder, tp: TensorParallel) -> None:
        self.config = config
        self.decoder = decoder
        self.tp = tp
        self.dtype = decoder.attention.dtype
        self.device = decoder.attention.rotaries[0].inv_freq.device

    @torch.inference_mode()
    def forward(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor:
        """The last hidden states of a step, [tokens, hidden_size], before the final norm.

        `kv` is the rank's pool (see `kv_shape`), plain or quantised; the step's keys and values are written into it.
        `layer_done(layer)` is called as soon as that layer's are there.
        """
        ops, spec = self.decoder.ops, self.config.kv
        step = begin_groups(
            spec, self.decoder.attention, batch.groups, lambda inputs, shape: ops.begin_step(inputs, shape, kv)
        )
        return self.decoder.run(batch.token_ids, step, layer_done)

    @torch.inference_mode()
    def scores(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor | None:
        """`forward`, then `logits` of the rows that sample. None where there are none, and on ranks other than 0."""
        hidden = self.forward(batch, kv, layer_done)
        return self.logits(hidden[batch.sample_indices]) if len(batch.arrays.sample_rows) else None

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor | None:
        """Scores of every token, [n, vocab_size] in float32, for rows [n, hidden_size] of what `forward` returned.

        A collective call; the whole vocabulary comes together on rank 0, the other ranks get None.
        """
        gathered = self.tp.gather_columns(self.decoder.scores(hidden))
        if gathered is None:
            return None
        return softcap(gathered[:, : self.config.vocab_size].float(), self.config.final_softcap)
