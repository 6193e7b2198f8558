"""What the model asks of a device: an `Ops` object, and for each step an `AttentionStep`.

`TorchOps` is plain torch and runs anywhere; `kernels/gpu/ops.py` has the same in Triton. A step in their words:

    step = ops.begin_step(batch, attention, kv)                 once a step, for all layers
    for layer:  x += ..., norm              ops.rms_norm(x, weight, eps, add)
                qkv                         ops.linear
                q; keys, values -> pages    step.write(qkv, qk_norm, kv[layer])
                attention                   step.attend(q, kv[layer], window)
                output                      ops.linear
                x += ..., norm, gate_up, down       ops.silu_mul in between
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.kv_pages import kv_rows, write_kv
from slipstream.kernels.linear import linear, pack_weight
from slipstream.kernels.paged_attention import AttentionPlan, paged_attention, plan_attention
from slipstream.kernels.rms_norm import rms_norm
from slipstream.kernels.rotary import rotary_angles, rotary_embedding
from slipstream.kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What all steps of a model on one rank share. Heads count those of the rank."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    inv_freq: Tensor  # [head_dim / 2] float32: angle per position
    rotary_scale: float  # on cosines and sines
    norm_eps: float  # of qk_norm
    windows: frozenset[int | None]  # that `attend` will be called with
    dtype: torch.dtype  # of queries, keys and values


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


class AttentionStep(Protocol):
    """One step's attention. `kv_layer` is one layer of the pool, [pages, kv_heads, 2, page_tokens, head_dim]."""

    def write(self, qkv: Tensor, qk_norm: Tensor | None, kv_layer: Tensor) -> Tensor:
        """Norms (`qk_norm` is [heads + kv_heads, head_dim]) and rotates queries and keys, and stores keys and values
        in their pages. `qkv` is [tokens, (heads + 2 * kv_heads) * head_dim]: query heads, key heads, value heads.
        Returns the queries, [tokens, heads, head_dim]."""

    def attend(self, q: Tensor, kv_layer: Tensor, window: int | None) -> Tensor:
        """Causal attention of what `write` returned to all keys of each sequence, or with a `window` to its own and
        the `window - 1` before it. Returns [tokens, heads, head_dim]."""


class Ops(Protocol):
    """`x` is [tokens, dim] in the model's dtype wherever nothing else is said."""

    def pack_weight(self, weight: Tensor) -> Tensor:
        """`weight` [out, in] in the form that `linear` is fastest with."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, with a weight from `pack_weight`."""

    def embedding(self, token_ids: Tensor, table: Tensor) -> Tensor:
        """Rows `token_ids` of `table` [vocab, dim]."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, add: Tensor | None = None) -> Tensor:
        """`x += add` first, in place, where there is something to add; then the norm of `x`."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up`, [tokens, dim] of [tokens, 2 * dim]."""

    def begin_step(self, inputs: StepInputs, attention: AttentionShape, kv: Tensor) -> AttentionStep:
        """`kv` is the whole pool, [layers, pages, kv_heads, 2, page_tokens, head_dim]."""


class TorchOps:
    """`Ops` in plain torch, and on CPU with oneDNN's packed products."""

    def pack_weight(self, weight: Tensor) -> Tensor:
        return pack_weight(weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, weight, bias)

    def embedding(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return F.embedding(token_ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, add: Tensor | None = None) -> Tensor:
        if add is not None:
            x += add
        return rms_norm(x, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)

    def begin_step(self, inputs: StepInputs, attention: AttentionShape, kv: Tensor) -> AttentionStep:
        # What an earlier owner left behind the last token is masked, but a nan would get through any mask.
        kv.index_fill_(1, inputs.fresh_pages, 0)
        shape, page_tokens = attention, kv.shape[4]
        cos, signed_sin = rotary_angles(inputs.positions, shape.inv_freq, shape.rotary_scale, shape.dtype)
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
        return TorchStep(shape, cos, signed_sin, kv_rows(inputs.slots, shape.num_kv_heads, page_tokens), plans)


@dataclass(frozen=True, slots=True)
class TorchStep:
    """What all layers of a step share."""

    shape: AttentionShape
    cos: Tensor
    signed_sin: Tensor
    kv_rows: Tensor
    plans: dict[int | None, AttentionPlan]  # by window

    def write(self, qkv: Tensor, qk_norm: Tensor | None, kv_layer: Tensor) -> Tensor:
        heads = self.shape.num_heads
        by_head = qkv.view(qkv.shape[0], -1, self.shape.head_dim)
        qk, values = by_head.tensor_split((heads + self.shape.num_kv_heads,), dim=1)
        if qk_norm is not None:
            qk = rms_norm(qk, qk_norm, self.shape.norm_eps)
        qk = rotary_embedding(qk, self.cos, self.signed_sin)
        write_kv(kv_layer, qk[:, heads:], values, self.kv_rows)
        return qk[:, :heads]

    def attend(self, q: Tensor, kv_layer: Tensor, window: int | None) -> Tensor:
        return paged_attention(q, kv_layer, self.plans[window], self.shape.head_dim**-0.5)
