"""What a model family provides: the layers of a decoder, written once in the words of `kernels.ops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from slipstream.kernels.ops import AttentionShape, AttentionStep, Ops
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.interface.weight_source import WeightSource
from slipstream.workers.models.sharding.rank_share import RankShare


class Decoder(Protocol):
    """One rank's share of a decoder.

    `run` and `scores` must make the same calls of `ops` in every step: they look at no numbers and at no shapes of
    activations, and hand what an op returns only to other ops. So the native kernels can record the calls once, and
    compute each step from the record (`kernels.cpu.native_ops`).
    """

    ops: Ops
    attention: AttentionShape

    def run(self, token_ids: Tensor, step: AttentionStep, layer_done: Callable[[int], None] | None = None) -> Tensor:
        """The last hidden states of a step, [tokens, hidden_size], before the final norm. `layer_done(layer)` is called
        as soon as the keys and values of that layer are in their pages."""

    def scores(self, hidden: Tensor) -> Tensor:
        """[n, vocab share] for rows of what `run` returned: the product with the output layer."""


class DecoderFamily(Protocol):
    """How models of a family are made (see `models.registry`)."""

    def __call__(
        self, config: ModelConfig, share: RankShare, source: WeightSource, tp: TensorParallel, ops: Ops
    ) -> Decoder:
        """Reads the rank's weights from `source`. Raises ModelError."""
