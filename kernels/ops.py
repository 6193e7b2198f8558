"""What the model asks of a device: an `Ops` object, and for each step an `AttentionStep`.

`TorchOps` is plain torch and runs anywhere, `TritonOps` (`kernels/gpu/triton_ops.py`) runs on a GPU, and `NativeOps`
(`kernels/cpu/native_ops.py`) records the calls for the native CPU kernels. A step in their words:

    step = ops.begin_step(batch, attention, kv)                 once a step, for all layers
    x = ops.embedding(token_ids)
    for layer:  qkv = ops.norm_linear(x)
                q = step.write(qkv, qk_norm, layer)             keys and values into their pages
                ops.linear(step.attend(q, layer), add_to=x)
                ops.linear(ops.norm_gated(x), add_to=x)         feed-forward
                or ops.norm_experts(x)                          of a mixture of experts
    logits = ops.norm_linear(x)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.attention.paged_attention import AttentionPlan, paged_attention, plan_attention
from slipstream.kernels.elementwise.gated import Gate, gated
from slipstream.kernels.elementwise.rms_norm import rms_norm
from slipstream.kernels.elementwise.rotary import rotary_angles, rotary_embedding
from slipstream.kernels.linear.packed_linear import linear, pack_weight
from slipstream.kernels.moe.grouped_experts import ExpertWeights, Routing, grouped_experts
from slipstream.kernels.moe.routing import route
from slipstream.kernels.pages.kv_pages import kv_rows, write_kv
from slipstream.kernels.pages.quantized_kv import is_quantized, page_tokens_of, write_quantized_kv
from slipstream.kernels.quantization.quantized_weight import QuantizedWeight, quantized_linear

Weight = Tensor | QuantizedWeight


@dataclass(frozen=True, slots=True)
class Rotary:
    inv_freq: Tensor  # [head_dim / 2] float32: angle per position
    scale: float = 1.0  # on cosines and sines


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What all steps of a model on one rank share. Heads count those of the rank."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotaries: tuple[Rotary, ...]  # `write` is called with the number of one
    norm_eps: float  # of qk_norm
    windows: frozenset[int | None]  # that `attend` will be called with
    dtype: torch.dtype  # of queries, keys and values
    scale: float  # of scores
    softcap: float | None = None  # scores are softcap * tanh(score / softcap), as in Gemma 2


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """The router of a layer, and the rank's part of its experts: a run of them, or of the inner dimension of each."""

    routing: Routing
    router: Weight  # [num_experts, in]
    router_bias: Tensor | None  # [num_experts]
    experts: ExpertWeights


class StepInputs(Protocol):
    """The sequences of a step, one after the other (`workers.models.batch.StepBatch` is one)."""

    @property
    def positions(self) -> Tensor: ...  # [tokens]

    @property
    def slots(self) -> Tensor: ...  # [tokens]: page id * page_tokens + offset in the page

    @property
    def query_lens(self) -> tuple[int, ...]: ...  # [seqs] tokens of this step

    @property
    def kv_lens(self) -> tuple[int, ...]: ...  # [seqs] tokens up to and including this step

    @property
    def page_table(self) -> Tensor: ...  # [seqs, max_pages], on the host

    @property
    def fresh_pages(self) -> Tensor: ...  # [n]: pages that this step begins and does not fill


class Ranks(Protocol):
    """A tensor-parallel group, as one of its ranks sees it."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over ranks, in place."""


class AttentionStep(Protocol):
    """One step's attention. `layer` is one of the pool's, [pages, kv_heads, 2, page_tokens, head_dim], or
    [pages, kv_heads, head_bytes] where it is quantised (see `quantized_kv`)."""

    def write(self, qkv: Tensor, qk_norm: Tensor | None, layer: int, rotary: int = 0) -> Tensor:
        """Norms (`qk_norm` is [heads + kv_heads, head_dim]) and rotates queries and keys, and stores keys and values
        in their pages. `qkv` is [tokens, (heads + 2 * kv_heads) * head_dim]: query heads, key heads, value heads.
        `rotary` is a number in `AttentionShape.rotaries`. Returns the queries, [tokens, heads, head_dim]."""

    def attend(self, q: Tensor, layer: int, window: int | None, sinks: Tensor | None = None) -> Tensor:
        """Causal attention of what `write` returned to all keys of each sequence, or with a `window` to its own and
        the `window - 1` before it. `sinks` [heads] float32 are the scores of one more key of each head, whose value is
        zero (gpt-oss). Returns [tokens, heads * head_dim]."""


class Ops(Protocol):
    """`x` is [tokens, in] in the model's dtype; a weight is [out, in], from `pack_weight` or quantised, a bias
    [out]. Norms are `rms_norm` with `norm_weight` [in], of the model's dtype or float32. `ranks` None is a group of
    one.
    """

    def pack_weight(self, weight: Tensor) -> Tensor:
        """`weight` in the form that products are fastest with."""

    def embedding(self, token_ids: Tensor, table: Tensor, ranks: Ranks | None = None, scale: float = 1.0) -> Tensor:
        """Rows `token_ids` [tokens] of the embedding times `scale`, a new tensor. `table` [vocab share, dim] is the
        rank's run of it: each rank holds as many rows."""

    def linear(
        self,
        x: Tensor,
        weight: Weight,
        bias: Tensor | None,
        add_to: Tensor | None = None,
        ranks: Ranks | None = None,
    ) -> Tensor:
        """`x @ weight.T + bias`, [tokens, out]. With `add_to` [tokens, out] the sum over ranks is added to that, in
        place."""

    def linear_norm(
        self,
        x: Tensor,
        weight: Weight,
        bias: Tensor | None,
        norm_weight: Tensor,
        eps: float,
        add_to: Tensor,
        ranks: Ranks | None = None,
    ) -> Tensor:
        """`linear`, summed over ranks, and the norm of that added to `add_to` [tokens, out], in place (Gemma's norms
        behind attention and feed-forward block)."""

    def norm_linear(
        self, x: Tensor, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None = None
    ) -> Tensor:
        """`linear` of the norm of `x`."""

    def norm_gated(
        self,
        x: Tensor,
        norm_weight: Tensor,
        eps: float,
        weight: Weight,
        bias: Tensor | None = None,
        gate: Gate = "silu",
    ) -> Tensor:
        """`norm_linear`, its first half of outputs the gate of the second: `silu(gate) * up`, or with another function,
        [tokens, out / 2]."""

    def norm_experts(
        self, x: Tensor, norm_weight: Tensor, eps: float, moe: MoeWeights, ranks: Ranks | None = None
    ) -> Tensor:
        """Adds to `x`, in place, what the experts that each row chooses make of its norm, summed over ranks."""

    def begin_step(self, inputs: StepInputs, attention: AttentionShape, kv: Tensor) -> AttentionStep:
        """`kv` is the whole pool, [layers, ...] as in `AttentionStep`."""


def embedding_rows(token_ids: Tensor, table: Tensor, ranks: Ranks | None, scale: float = 1.0) -> Tensor:
    """`Ops.embedding` in torch."""
    if ranks is None or ranks.size == 1:
        rows = F.embedding(token_ids, table)
    else:
        share = table.shape[0]
        local = token_ids - ranks.rank * share
        elsewhere = (local < 0) | (local >= share)
        rows = F.embedding(local.clamp(0, share - 1), table)
        rows = ranks.all_reduce(rows.masked_fill_(elsewhere[:, None], 0))
    return rows if scale == 1.0 else rows.mul_(scale)


class TorchOps:
    """`Ops` in plain torch, and on CPU with oneDNN's packed products. Products with quantised weights are references,
    not fast."""

    def pack_weight(self, weight: Tensor) -> Tensor:
        return pack_weight(weight)

    def embedding(self, token_ids: Tensor, table: Tensor, ranks: Ranks | None = None, scale: float = 1.0) -> Tensor:
        return embedding_rows(token_ids, table, ranks, scale)

    def linear(
        self,
        x: Tensor,
        weight: Weight,
        bias: Tensor | None,
        add_to: Tensor | None = None,
        ranks: Ranks | None = None,
    ) -> Tensor:
        product = linear(x, weight, bias) if isinstance(weight, Tensor) else quantized_linear(x, weight, bias)
        if add_to is None:
            return product
        return add_to.add_(product if ranks is None else ranks.all_reduce(product))

    def linear_norm(
        self,
        x: Tensor,
        weight: Weight,
        bias: Tensor | None,
        norm_weight: Tensor,
        eps: float,
        add_to: Tensor,
        ranks: Ranks | None = None,
    ) -> Tensor:
        product = self.linear(x, weight, bias)
        return add_to.add_(rms_norm(product if ranks is None else ranks.all_reduce(product), norm_weight, eps))

    def norm_linear(
        self, x: Tensor, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None = None
    ) -> Tensor:
        return self.linear(rms_norm(x, norm_weight, eps), weight, bias)

    def norm_gated(
        self,
        x: Tensor,
        norm_weight: Tensor,
        eps: float,
        weight: Weight,
        bias: Tensor | None = None,
        gate: Gate = "silu",
    ) -> Tensor:
        return gated(self.norm_linear(x, norm_weight, eps, weight, bias), gate)

    def norm_experts(
        self, x: Tensor, norm_weight: Tensor, eps: float, moe: MoeWeights, ranks: Ranks | None = None
    ) -> Tensor:
        normed, routing = rms_norm(x, norm_weight, eps), moe.routing
        scores = self.linear(normed, moe.router, moe.router_bias)
        experts, weights = route(scores, routing.top_k, renormalise=routing.renormalise)
        added = grouped_experts(normed, experts, weights, moe.experts).to(x.dtype)
        return x.add_(added if ranks is None else ranks.all_reduce(added))

    def begin_step(self, inputs: StepInputs, attention: AttentionShape, kv: Tensor) -> AttentionStep:
        # What an earlier owner left behind the last token is masked, but a nan would get through any mask.
        (kv.view(torch.uint8) if is_quantized(kv) else kv).index_fill_(1, inputs.fresh_pages, 0)
        shape, page_tokens = attention, page_tokens_of(kv, attention.head_dim)
        angles = tuple(
            rotary_angles(inputs.positions, rotary.inv_freq, rotary.scale, shape.dtype) for rotary in shape.rotaries
        )
        plans = {
            window: plan_attention(
                inputs.query_lens,
                inputs.kv_lens,
                inputs.page_table,
                num_kv_heads=shape.num_kv_heads,
                page_tokens=page_tokens,
                window=window,
                dtype=shape.dtype,
                device=kv.device,
            )
            for window in shape.windows
        }
        rows = kv_rows(inputs.slots, shape.num_kv_heads, page_tokens)
        return TorchStep(shape, kv, angles, inputs.slots, rows, plans)


@dataclass(frozen=True, slots=True)
class TorchStep:
    """What all layers of a step share."""

    shape: AttentionShape
    kv: Tensor
    angles: tuple[tuple[Tensor, Tensor], ...]  # cos, signed sin by number of the rotary
    slots: Tensor
    kv_rows: Tensor
    plans: dict[int | None, AttentionPlan]  # by window

    def write(self, qkv: Tensor, qk_norm: Tensor | None, layer: int, rotary: int = 0) -> Tensor:
        heads, kv_layer = self.shape.num_heads, self.kv[layer]
        by_head = qkv.view(qkv.shape[0], -1, self.shape.head_dim)
        qk, values = by_head.tensor_split((heads + self.shape.num_kv_heads,), dim=1)
        if qk_norm is not None:
            qk = rms_norm(qk, qk_norm, self.shape.norm_eps)
        qk = rotary_embedding(qk, *self.angles[rotary])
        if is_quantized(kv_layer):
            write_quantized_kv(kv_layer, qk[:, heads:], values, self.slots)
        else:
            write_kv(kv_layer, qk[:, heads:], values, self.kv_rows)
        return qk[:, :heads]

    def attend(self, q: Tensor, layer: int, window: int | None, sinks: Tensor | None = None) -> Tensor:
        shape = self.shape
        attended = paged_attention(
            q, self.kv[layer], self.plans[window], shape.scale, softcap=shape.softcap, sinks=sinks
        )
        return attended.flatten(1)
