"""The Gemma family: versions 1, 2 and 3, text only.

Beside Llama: embeddings are scaled, gates are of gelu, and norms are stored as what they differ from one. Versions 2
and 3 norm what attention and the feed-forward block add, and most layers have a window; version 2 caps scores, version
3 norms queries and keys, and layers with a window rotate by other frequencies.

    x -> norm -> qkv (rows) -> attention over own heads -> output (columns) -> sum over ranks -> norm -> +
      -> norm -> gate_up (rows) -> gelu * ------------> down (columns) -> sum over ranks -> norm -> +
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels.ops import AttentionShape, AttentionStep, Ops, Rotary, Weight
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.interface.weight_source import Linear, WeightSource
from slipstream.workers.models.llama import read_qk_norm
from slipstream.workers.models.rope import rotary_frequencies
from slipstream.workers.models.sharding.rank_share import LayerShare, RankShare

FULL, WINDOWED = 0, 1  # numbers of rotary frequencies


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's share of a rank. Norms have one added to what is stored."""

    attention_norm: Tensor  # [hidden]
    qkv: Linear  # [(heads + 2 * kv_heads) * head_dim, hidden]: query heads, key heads, value heads
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    output: Linear  # [hidden, heads * head_dim]
    attention_post_norm: Tensor | None  # [hidden]
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear  # [2 * intermediate, hidden]
    down: Linear  # [hidden, intermediate]
    mlp_post_norm: Tensor | None  # [hidden]

    @staticmethod
    def read(share: LayerShare, source: WeightSource) -> LayerWeights:
        gate_up, down = share.dense
        post_norms = (share.attention_post_norm, share.mlp_post_norm)
        attention_post_norm, mlp_post_norm = (
            None if part is None else source.vector(part, plus=1.0) for part in post_norms
        )
        return LayerWeights(
            attention_norm=source.vector(share.attention_norm, plus=1.0),
            qkv=source.linear(share.qkv),
            qk_norm=read_qk_norm(share, source, plus=1.0),
            output=source.linear(share.output),
            attention_post_norm=attention_post_norm,
            mlp_norm=source.vector(share.mlp_norm, plus=1.0),
            gate_up=source.linear(gate_up, gated=True),
            down=source.linear(down),
            mlp_post_norm=mlp_post_norm,
        )


@dataclass(frozen=True, slots=True)
class GemmaWeights:
    """A rank's share. The vocabulary is dealt out in equal runs, padded with zero rows at the end."""

    embedding: Tensor  # [vocab share, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    lm_head: Weight  # [vocab share, hidden], packed; the embedding's numbers where they are tied

    @staticmethod
    def read(share: RankShare, source: WeightSource) -> GemmaWeights:
        embedding = source.embedding(share.embedding, share.vocab_share)
        return GemmaWeights(
            embedding=embedding,
            layers=tuple(LayerWeights.read(layer, source) for layer in share.layers),
            final_norm=source.vector(share.final_norm, plus=1.0),
            lm_head=source.output_layer(share.lm_head, share.vocab_share, embedding, is_tied=share.is_tied),
        )


class Gemma:
    """A `Decoder` on one rank. `ops` is what it computes with; the weights must have been packed by the same kind."""

    def __init__(self, config: ModelConfig, weights: GemmaWeights, tp: TensorParallel, ops: Ops) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops
        self._tp = tp
        dtype, device = weights.embedding.dtype, weights.embedding.device
        # Rounded as transformers does it.
        self._embedding_scale = float(torch.tensor(config.hidden_size**0.5, dtype=dtype))
        ropes = [None] if config.window_rope is None else [None, config.window_rope]
        frequencies = [rotary_frequencies(config, rope) for rope in ropes]
        self.attention = AttentionShape(
            num_heads=config.num_heads // tp.size,
            num_kv_heads=config.num_kv_heads // tp.size,
            head_dim=config.head_dim,
            rotaries=tuple(Rotary(inv_freq.to(device), scale) for inv_freq, scale in frequencies),
            norm_eps=config.rms_norm_eps,
            windows=frozenset(config.layer_windows),
            dtype=dtype,
            scale=(config.query_scalar or config.head_dim) ** -0.5,
            softcap=config.attention_softcap,
        )

    @classmethod
    def read(cls, config: ModelConfig, share: RankShare, source: WeightSource, tp: TensorParallel, ops: Ops) -> Gemma:
        return cls(config, GemmaWeights.read(share, source), tp, ops)

    def run(self, token_ids: Tensor, step: AttentionStep, layer_done: Callable[[int], None] | None = None) -> Tensor:
        ops, eps, gate = self.ops, self.config.rms_norm_eps, self.config.gate
        x = ops.embedding(token_ids, self.weights.embedding, self._tp, self._embedding_scale)
        for index, layer in enumerate(self.weights.layers):
            window = self.config.layer_windows[index]
            qkv = ops.norm_linear(x, layer.attention_norm, eps, layer.qkv.weight, layer.qkv.bias)
            rotary = FULL if window is None or self.config.window_rope is None else WINDOWED
            q = step.write(qkv, layer.qk_norm, index, rotary)
            if layer_done is not None:
                layer_done(index)
            self._add(step.attend(q, index, window), layer.output, layer.attention_post_norm, x)
            inner = ops.norm_gated(x, layer.mlp_norm, eps, layer.gate_up.weight, layer.gate_up.bias, gate)
            self._add(inner, layer.down, layer.mlp_post_norm, x)
        return x

    def scores(self, hidden: Tensor) -> Tensor:
        """Without the cap of version 2 (see `OpsModel.logits`)."""
        weights = self.weights
        return self.ops.norm_linear(hidden, weights.final_norm, self.config.rms_norm_eps, weights.lm_head)

    def _add(self, inner: Tensor, linear: Linear, post_norm: Tensor | None, x: Tensor) -> None:
        """`x` += what `linear` makes of `inner`, summed over ranks and normed where there is a norm."""
        if post_norm is None:
            self.ops.linear(inner, linear.weight, linear.bias, add_to=x, ranks=self._tp)
        else:
            eps = self.config.rms_norm_eps
            self.ops.linear_norm(inner, linear.weight, linear.bias, post_norm, eps, add_to=x, ranks=self._tp)
