"""The Llama family: one model for Llama, Mistral, Qwen2 and Qwen3, which differ in what their weights hold.

A rank of a tensor-parallel group holds a run of heads with their rows of the projections, a run of the feed-forward
block's inner dimension and a run of the vocabulary:

    x -> norm -> qkv (rows) -> attention over own heads -> output (columns) -> sum over ranks -> +
      -> norm -> gate_up (rows) -> silu * ------------> down (columns) -> sum over ranks -> +
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from slipstream.kernels.ops import AttentionShape, AttentionStep, Ops, Rotary, Weight
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.interface.weight_source import Linear, WeightSource
from slipstream.workers.models.rope import rotary_frequencies
from slipstream.workers.models.sharding.rank_share import LayerShare, RankShare


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's share of a rank."""

    attention_norm: Tensor  # [hidden]
    qkv: Linear  # [(heads + 2 * kv_heads) * head_dim, hidden]: query heads, key heads, value heads
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    output: Linear  # [hidden, heads * head_dim]
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear  # [2 * intermediate, hidden]
    down: Linear  # [hidden, intermediate]

    @staticmethod
    def read(share: LayerShare, source: WeightSource) -> LayerWeights:
        gate_up, down = share.dense
        return LayerWeights(
            attention_norm=source.vector(share.attention_norm),
            qkv=source.linear(share.qkv),
            qk_norm=read_qk_norm(share, source),
            output=source.linear(share.output),
            mlp_norm=source.vector(share.mlp_norm),
            gate_up=source.linear(gate_up, gated=True),
            down=source.linear(down),
        )


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """A rank's share. The vocabulary is dealt out in equal runs, padded with zero rows at the end."""

    embedding: Tensor  # [vocab share, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    lm_head: Weight  # [vocab share, hidden], packed; the embedding's numbers where they are tied

    @staticmethod
    def read(share: RankShare, source: WeightSource) -> LlamaWeights:
        embedding = source.embedding(share.embedding, share.vocab_share)
        return LlamaWeights(
            embedding=embedding,
            layers=tuple(LayerWeights.read(layer, source) for layer in share.layers),
            final_norm=source.vector(share.final_norm),
            lm_head=source.output_layer(share.lm_head, share.vocab_share, embedding, is_tied=share.is_tied),
        )


class Llama:
    """A `Decoder` on one rank. `ops` is what it computes with; the weights must have been packed by the same kind."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights, tp: TensorParallel, ops: Ops) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops
        self._tp = tp
        self.attention = attention_shape(config, tp, weights.embedding)

    @classmethod
    def read(cls, config: ModelConfig, share: RankShare, source: WeightSource, tp: TensorParallel, ops: Ops) -> Llama:
        return cls(config, LlamaWeights.read(share, source), tp, ops)

    def run(self, token_ids: Tensor, step: AttentionStep, layer_done: Callable[[int], None] | None = None) -> Tensor:
        ops, tp, eps = self.ops, self._tp, self.config.rms_norm_eps
        x = ops.embedding(token_ids, self.weights.embedding, tp)
        for index, layer in enumerate(self.weights.layers):
            qkv = ops.norm_linear(x, layer.attention_norm, eps, layer.qkv.weight, layer.qkv.bias)
            q = step.write(qkv, layer.qk_norm, index)
            if layer_done is not None:
                layer_done(index)
            attended = step.attend(q, index, self.config.layer_windows[index])
            ops.linear(attended, layer.output.weight, layer.output.bias, add_to=x, ranks=tp)
            inner = ops.norm_gated(x, layer.mlp_norm, eps, layer.gate_up.weight, layer.gate_up.bias)
            ops.linear(inner, layer.down.weight, layer.down.bias, add_to=x, ranks=tp)
        return x

    def scores(self, hidden: Tensor) -> Tensor:
        weights = self.weights
        return self.ops.norm_linear(hidden, weights.final_norm, self.config.rms_norm_eps, weights.lm_head)


def attention_shape(config: ModelConfig, tp: TensorParallel, embedding: Tensor) -> AttentionShape:
    """That of a rank. The embedding has the model's dtype and device."""
    inv_freq, rotary_scale = rotary_frequencies(config)
    return AttentionShape(
        num_heads=config.num_heads // tp.size,
        num_kv_heads=config.num_kv_heads // tp.size,
        head_dim=config.head_dim,
        rotaries=(Rotary(inv_freq.to(embedding.device), rotary_scale),),
        norm_eps=config.rms_norm_eps,
        windows=frozenset(config.layer_windows),
        dtype=embedding.dtype,
        scale=config.head_dim**-0.5,
    )


def read_qk_norm(share: LayerShare, source: WeightSource, *, plus: float = 0.0) -> Tensor | None:
    """The same weight for all query heads, another for all key heads; `plus` as in `WeightSource.vector`."""
    if share.query_norm is None or share.key_norm is None:
        return None
    head_dim = share.query_norm.num_rows
    num_heads, num_kv_heads = (part.num_rows // head_dim for part in share.qkv.weights[:2])
    return source.head_vectors([share.query_norm] * num_heads + [share.key_norm] * num_kv_heads, plus=plus)
