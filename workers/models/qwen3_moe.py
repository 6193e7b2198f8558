"""Qwen3-MoE: the attention of Qwen3, and layers whose feed-forward block is a router and experts.

    x -> norm -> qkv -> attention -> output -> sum over ranks -> +
      -> norm -> router -> the experts that a row chooses, weighted -> sum over ranks -> +

A rank has a run of the inner dimension of each expert, or with expert parallelism a run of the experts; either way its
part of the sum is what it adds. Some layers may have a dense block instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from slipstream.kernels.moe.gate import ClampedSwiglu, ExpertGate
from slipstream.kernels.moe.grouped_experts import Routing
from slipstream.kernels.ops import AttentionStep, MoeWeights, Ops, Weight
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.moe_config import MoeConfig
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.interface.weight_source import Linear, WeightSource
from slipstream.workers.models.llama import attention_shape, read_qk_norm
from slipstream.workers.models.sharding.rank_share import ExpertsShare, LayerShare, RankShare


@dataclass(frozen=True, slots=True)
class DenseBlock:
    gate_up: Linear  # [2 * intermediate, hidden]
    down: Linear  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class MoeLayerWeights:
    """One layer's share of a rank."""

    attention_norm: Tensor  # [hidden]
    qkv: Linear  # [(heads + 2 * kv_heads) * head_dim, hidden]: query heads, key heads, value heads
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    output: Linear  # [hidden, heads * head_dim]
    mlp_norm: Tensor  # [hidden]
    mlp: MoeWeights | DenseBlock

    @staticmethod
    def read(share: LayerShare, moe: MoeConfig, source: WeightSource) -> MoeLayerWeights:
        return MoeLayerWeights(
            attention_norm=source.vector(share.attention_norm),
            qkv=source.linear(share.qkv),
            qk_norm=read_qk_norm(share, source),
            output=source.linear(share.output),
            mlp_norm=source.vector(share.mlp_norm),
            mlp=_dense(share, source) if share.experts is None else _experts(share.experts, moe, source),
        )


class Qwen3Moe:
    """A `Decoder` on one rank. `ops` is what it computes with; the weights must have been packed by the same kind."""

    def __init__(
        self, config: ModelConfig, share: RankShare, source: WeightSource, tp: TensorParallel, ops: Ops
    ) -> None:
        assert config.moe is not None
        self.config = config
        self.ops = ops
        self._tp = tp
        self.embedding = source.embedding(share.embedding, share.vocab_share)  # [vocab share, hidden]
        self.layers = tuple(MoeLayerWeights.read(layer, config.moe, source) for layer in share.layers)
        self.final_norm = source.vector(share.final_norm)
        self.lm_head: Weight = source.output_layer(
            share.lm_head, share.vocab_share, self.embedding, is_tied=share.is_tied
        )
        self.attention = attention_shape(config, tp, self.embedding)

    def run(self, token_ids: Tensor, step: AttentionStep, layer_done: Callable[[int], None] | None = None) -> Tensor:
        ops, tp, eps = self.ops, self._tp, self.config.rms_norm_eps
        x = ops.embedding(token_ids, self.embedding, tp)
        for index, layer in enumerate(self.layers):
            qkv = ops.norm_linear(x, layer.attention_norm, eps, layer.qkv.weight, layer.qkv.bias)
            q = step.write(qkv, layer.qk_norm, index)
            if layer_done is not None:
                layer_done(index)
            ops.linear(self.attend(q, step, index), layer.output.weight, layer.output.bias, add_to=x, ranks=tp)
            self._feed_forward(x, layer)
        return x

    def attend(self, q: Tensor, step: AttentionStep, index: int) -> Tensor:
        return step.attend(q, index, self.config.layer_windows[index])

    def scores(self, hidden: Tensor) -> Tensor:
        return self.ops.norm_linear(hidden, self.final_norm, self.config.rms_norm_eps, self.lm_head)

    def _feed_forward(self, x: Tensor, layer: MoeLayerWeights) -> None:
        ops, tp, eps, mlp = self.ops, self._tp, self.config.rms_norm_eps, layer.mlp
        if isinstance(mlp, MoeWeights):
            ops.norm_experts(x, layer.mlp_norm, eps, mlp, ranks=tp)
            return
        inner = ops.norm_gated(x, layer.mlp_norm, eps, mlp.gate_up.weight, mlp.gate_up.bias)
        ops.linear(inner, mlp.down.weight, mlp.down.bias, add_to=x, ranks=tp)


def _dense(share: LayerShare, source: WeightSource) -> DenseBlock:
    gate_up, down = share.dense
    return DenseBlock(source.linear(gate_up, gated=True), source.linear(down))


def _experts(share: ExpertsShare, moe: MoeConfig, source: WeightSource) -> MoeWeights:
    router = source.router(share.router)
    gate: ExpertGate = "silu" if moe.swiglu is None else ClampedSwiglu(*moe.swiglu)
    routing = Routing(moe.num_experts, moe.top_k, moe.renormalise)
    return MoeWeights(routing, router.weight, router.bias, source.experts(share, gate))
