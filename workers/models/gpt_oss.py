"""gpt-oss: layers of experts in all layers, windows in every other one, and attention sinks.

The router chooses before its softmax, experts have biases and a gate of their own (`ClampedSwiglu`). A sink is a number
of a head: it takes part in the softmax of each of its queries, and adds nothing to the result.
"""

from __future__ import annotations

from torch import Tensor

from slipstream.kernels.ops import AttentionStep, Ops
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.interface.weight_source import WeightSource
from slipstream.workers.models.qwen3_moe import Qwen3Moe
from slipstream.workers.models.sharding.rank_share import RankShare


class GptOss(Qwen3Moe):
    """A `Decoder` on one rank."""

    def __init__(
        self, config: ModelConfig, share: RankShare, source: WeightSource, tp: TensorParallel, ops: Ops
    ) -> None:
        super().__init__(config, share, source, tp, ops)
        self.sinks = tuple(source.vector(layer.sinks) for layer in share.layers if layer.sinks is not None)  # [heads]

    def attend(self, q: Tensor, step: AttentionStep, index: int) -> Tensor:
        return step.attend(q, index, self.config.layer_windows[index], sinks=self.sinks[index])
