"""The Llama family: one model for Llama, Mistral, Qwen2 and Qwen3, which differ in what their weights hold.

A rank of a tensor-parallel group holds a run of heads with their rows of the projections, a run of the feed-forward
block's inner dimension and a run of the vocabulary:

    x -> norm -> qkv (rows) -> attention over own heads -> output (columns) -> sum over ranks -> +
      -> norm -> gate_up (rows) -> silu * ------------> down (columns) -> sum over ranks -> +
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels.ops import AttentionShape, AttentionStep, Ops, TorchOps, Weight
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.rope import rotary_frequencies


@dataclass(frozen=True, slots=True)
class Linear:
    """`weight` is [out, in], packed (see `Ops.pack_weight`) or quantised. Where the results of ranks are summed,
    only rank 0 has a bias that is not zero."""

    weight: Weight
    bias: Tensor | None


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


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """A rank's share. The vocabulary is dealt out in equal runs, padded with zero rows at the end."""

    embedding: Tensor  # [vocab share, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    lm_head: Weight  # [vocab share, hidden], packed; the embedding's numbers where they are tied


class Llama:
    """A model on one rank. All ranks of its group call the same methods with the same batch.

    `ops` is what it computes with; the weights must have been packed by the same kind.
    """

    def __init__(self, config: ModelConfig, weights: LlamaWeights, tp: TensorParallel, ops: Ops | None = None) -> None:
        self.config = config
        self.weights = weights
        self.tp = tp
        self.ops: Ops = TorchOps() if ops is None else ops
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        inv_freq, rotary_scale = rotary_frequencies(config)
        self.attention = AttentionShape(
            num_heads=config.num_heads // tp.size,
            num_kv_heads=config.num_kv_heads // tp.size,
            head_dim=config.head_dim,
            inv_freq=inv_freq.to(self.device),
            rotary_scale=rotary_scale,
            norm_eps=config.rms_norm_eps,
            windows=frozenset(config.layer_windows),
            dtype=self.dtype,
        )

    @torch.inference_mode()
    def forward(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor:
        """The last hidden states of a step, [tokens, hidden_size], before the final norm.

        `kv` is the rank's pool (see `kv_shape`), plain or quantised; the step's keys and values are written into it.
        `layer_done(layer)` is called as soon as that layer's are there.
        """
        return self.run(batch.token_ids, self.ops.begin_step(batch, self.attention, kv), kv, layer_done)

    @torch.inference_mode()
    def run(
        self, token_ids: Tensor, step: AttentionStep, kv: Tensor, layer_done: Callable[[int], None] | None = None
    ) -> Tensor:
        """`forward` of a step that has begun: `token_ids` is [tokens]."""
        x, eps = self._embed(token_ids), self.config.rms_norm_eps
        for index, layer in enumerate(self.weights.layers):
            qkv = self.ops.norm_linear(x, layer.attention_norm, eps, layer.qkv.weight, layer.qkv.bias)
            q = step.write(qkv, layer.qk_norm, kv[index])
            if layer_done is not None:
                layer_done(index)
            attended = step.attend(q, kv[index], self.config.layer_windows[index])
            self._add(x, attended.flatten(1), layer.output)
            inner = self.ops.norm_gated(x, layer.mlp_norm, eps, layer.gate_up.weight, layer.gate_up.bias)
            self._add(x, inner, layer.down)
        return x

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor | None:
        """Scores of every token, [n, vocab_size] in float32, for rows [n, hidden_size] of what `forward` returned.

        A collective call; the whole vocabulary comes together on rank 0, the other ranks get None.
        """
        weights = self.weights
        local = self.ops.norm_linear(hidden, weights.final_norm, self.config.rms_norm_eps, weights.lm_head)
        gathered = self.tp.gather_columns(local)
        return None if gathered is None else gathered[:, : self.config.vocab_size].float()

    def _embed(self, token_ids: Tensor) -> Tensor:
        if self.tp.size == 1:
            return self.ops.embedding(token_ids, self.weights.embedding)
        share = self.weights.embedding.shape[0]
        local = token_ids - self.tp.rank * share
        elsewhere = (local < 0) | (local >= share)
        rows = self.ops.embedding(local.clamp(0, share - 1), self.weights.embedding)
        return self.tp.all_reduce(rows.masked_fill_(elsewhere[:, None], 0))

    def _add(self, x: Tensor, inner: Tensor, linear: Linear) -> None:
        """Adds a projection, summed over ranks, to the residual stream `x`."""
        if self.tp.size == 1:
            self.ops.linear(inner, linear.weight, linear.bias, add_to=x)
        else:
            x += self.tp.all_reduce(self.ops.linear(inner, linear.weight, linear.bias))
