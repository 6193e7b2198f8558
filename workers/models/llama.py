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
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.kv_pages import kv_rows, write_kv
from slipstream.kernels.linear import linear
from slipstream.kernels.paged_attention import AttentionPlan, paged_attention, plan_attention
from slipstream.kernels.rms_norm import rms_norm
from slipstream.kernels.rotary import rotary_angles, rotary_embedding
from slipstream.kernels.silu_mul import silu_mul
from slipstream.workers.models.batch import StepBatch
from slipstream.workers.models.config import ModelConfig
from slipstream.workers.models.rope import rotary_frequencies
from slipstream.workers.models.tensor_parallel import TensorParallel


@dataclass(frozen=True, slots=True)
class Linear:
    """`weight` is [out, in], packed (see `kernels.linear`). Where the results of ranks are summed, only rank 0 has a
    bias that is not zero."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


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
    lm_head: Tensor  # [vocab share, hidden], packed; the embedding's numbers where they are tied


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of a step share."""

    cos: Tensor
    signed_sin: Tensor
    kv_rows: Tensor
    plans: dict[int | None, AttentionPlan]  # by window


class Llama:
    """A model on one rank. All ranks of its group call the same methods with the same batch."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights, tp: TensorParallel) -> None:
        self.config = config
        self.weights = weights
        self.tp = tp
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self._num_heads = config.num_heads // tp.size
        self._num_kv_heads = config.num_kv_heads // tp.size
        inv_freq, self._rotary_scale = rotary_frequencies(config)
        self._inv_freq = inv_freq.to(self.device)

    @torch.inference_mode()
    def forward(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor:
        """The last hidden states of a step, [tokens, hidden_size], before the final norm.

        `kv` is the rank's pool (see `kv_shape`) in the model's dtype; the step's keys and values are written into it.
        `layer_done(layer)` is called as soon as that layer's are there.
        """
        step = self._prepare(batch, kv)
        x = self._embed(batch.token_ids)
        for index, layer in enumerate(self.weights.layers):
            x += self._attention(index, layer, x, kv[index], step, layer_done)
            x += self._feed_forward(layer, x)
        return x

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor | None:
        """Scores of every token, [n, vocab_size] in float32, for rows [n, hidden_size] of what `forward` returned.

        A collective call; the whole vocabulary comes together on rank 0, the other ranks get None.
        """
        x = rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps)
        gathered = self.tp.gather_columns(linear(x, self.weights.lm_head))
        return None if gathered is None else gathered[:, : self.config.vocab_size].float()

    def _prepare(self, batch: StepBatch, kv: Tensor) -> _Step:
        page_tokens = kv.shape[4]
        # What an earlier owner left behind the last token is masked, but a nan would get through any mask.
        kv.index_fill_(1, batch.fresh_pages, 0)
        cos, signed_sin = rotary_angles(batch.positions, self._inv_freq, self._rotary_scale, self.dtype)
        plans = {
            window: plan_attention(
                batch.query_lens,
                batch.kv_lens,
                batch.page_table,
                num_kv_heads=self._num_kv_heads,
                page_tokens=page_tokens,
                window=window,
                dtype=self.dtype,
                device=self.device,
            )
            for window in set(self.config.layer_windows)
        }
        return _Step(cos, signed_sin, kv_rows(batch.slots, self._num_kv_heads, page_tokens), plans)

    def _embed(self, token_ids: Tensor) -> Tensor:
        share = self.weights.embedding.shape[0]
        local = token_ids - self.tp.rank * share
        elsewhere = (local < 0) | (local >= share)
        rows = F.embedding(local.clamp(0, share - 1), self.weights.embedding)
        return self.tp.all_reduce(rows.masked_fill_(elsewhere[:, None], 0))

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        x: Tensor,
        kv_layer: Tensor,
        step: _Step,
        layer_done: Callable[[int], None] | None,
    ) -> Tensor:
        eps, heads, head_dim = self.config.rms_norm_eps, self._num_heads, self.config.head_dim
        qkv = layer.qkv(rms_norm(x, layer.attention_norm, eps)).view(x.shape[0], -1, head_dim)
        qk, values = qkv.tensor_split((heads + self._num_kv_heads,), dim=1)
        if layer.qk_norm is not None:
            qk = rms_norm(qk, layer.qk_norm, eps)
        qk = rotary_embedding(qk, step.cos, step.signed_sin)
        write_kv(kv_layer, qk[:, heads:], values, step.kv_rows)
        if layer_done is not None:
            layer_done(index)
        plan = step.plans[self.config.layer_windows[index]]
        attended = paged_attention(qk[:, :heads], kv_layer, plan, head_dim**-0.5)
        return self.tp.all_reduce(layer.output(attended.flatten(1)))

    def _feed_forward(self, layer: LayerWeights, x: Tensor) -> Tensor:
        gate_up = layer.gate_up(rms_norm(x, layer.mlp_norm, self.config.rms_norm_eps))
        return self.tp.all_reduce(layer.down(silu_mul(gate_up)))
