"""`Ops` in Triton, for steps that decode and steps with prompts.

                    up to 64 rows (decoding)                      more rows
    norm_linear     one kernel: norm, product, bias               norm; product (cuBLAS; fp8, int4: Triton)
    norm_gated      the same, gate included                       norm; product; gate
    linear, add_to  one kernel                                    cuBLAS adds to it by itself
    norm_experts    norm; router; choice (torch); two grouped products; weighted sum (torch)
    linear_norm     product; norm and addition                    the same
    attention       decode_attention for the sequences with one query, prefill_attention for the others

Nothing here waits for the device or looks at its numbers, so a step can be recorded as a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.attention.device_inputs import DeviceInputs
from slipstream.kernels.attention.gpu.decode_attention import decode_attention
from slipstream.kernels.attention.gpu.prefill_attention import prefill_attention
from slipstream.kernels.attention.gpu.rope_kv_write import rope_kv_write, rope_table
from slipstream.kernels.elementwise.gated import Gate
from slipstream.kernels.elementwise.gpu.gated import gated
from slipstream.kernels.elementwise.gpu.rms_norm import rms_norm
from slipstream.kernels.linear.gpu.decode_linear import MAX_ROWS, decode_linear
from slipstream.kernels.linear.gpu.fp8_linear import fp8_linear
from slipstream.kernels.linear.gpu.int4_linear import MIN_GROUP, int4_linear
from slipstream.kernels.linear.gpu.int4_linear import OFFSETS as INT4_DTYPES
from slipstream.kernels.moe.gpu.grouped_experts import grouped_experts
from slipstream.kernels.moe.routing import route
from slipstream.kernels.ops import AttentionShape, AttentionStep, MoeWeights, Ranks, StepInputs, Weight, embedding_rows
from slipstream.kernels.pages.gpu.kv_layer import KvLayer
from slipstream.kernels.quantization.quantized_weight import Fp8Weight, Int4Weight, dequantize


def check_pool(kv: Tensor, attention: AttentionShape) -> None:
    """Raises ValueError if the kernels cannot work on a pool like this."""
    KvLayer.of(kv[0], attention.head_dim, attention.dtype).check_heads(attention.num_heads)


class TritonOps:
    """Weights stay as they are: dense and contiguous, or quantised."""

    def pack_weight(self, weight: Tensor) -> Tensor:
        return weight.contiguous()

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
        if add_to is not None and ranks is not None and ranks.size > 1:
            return add_to.add_(ranks.all_reduce(self.linear(x, weight, bias)))
        if isinstance(weight, Tensor | Fp8Weight) and len(x) <= MAX_ROWS:
            return decode_linear(x, weight, bias, add_to=add_to)
        if isinstance(weight, Tensor) and bias is None and add_to is not None:
            return add_to.addmm_(x, weight.t())
        product = _product(x, weight, bias)
        return product if add_to is None else add_to.add_(product)

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
        if ranks is not None and ranks.size > 1:
            product = ranks.all_reduce(product)
        return add_to.add_(rms_norm(product, norm_weight, eps, dtype=add_to.dtype))

    def norm_linear(
        self, x: Tensor, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None = None
    ) -> Tensor:
        if isinstance(weight, Tensor | Fp8Weight) and len(x) <= MAX_ROWS:
            return decode_linear(x, weight, bias, norm_weight=norm_weight, eps=eps)
        return _product(rms_norm(x, norm_weight, eps, dtype=x.dtype), weight, bias)

    def norm_gated(
        self,
        x: Tensor,
        norm_weight: Tensor,
        eps: float,
        weight: Weight,
        bias: Tensor | None = None,
        gate: Gate = "silu",
    ) -> Tensor:
        if isinstance(weight, Tensor | Fp8Weight) and len(x) <= MAX_ROWS:
            return decode_linear(x, weight, bias, norm_weight=norm_weight, eps=eps, gated=True, gate=gate)
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
        """Brings the host's part of the inputs to the device, piece by piece; see `begin_device_step`."""

        def on_device(numbers: object) -> Tensor:
            return torch.as_tensor(numbers, dtype=torch.int32).to(kv.device)

        query_lens = np.array(inputs.query_lens)
        longer = np.flatnonzero(query_lens != 1)
        device_inputs = DeviceInputs(
            inputs.positions.to(torch.int32),
            inputs.slots.to(torch.int32),
            on_device(np.concatenate(([0], np.cumsum(query_lens)))),
            on_device(inputs.kv_lens),
            on_device(inputs.page_table),
            num_decodes=int(longer[0]) if len(longer) else len(query_lens),
            max_query_len=int(query_lens.max()),
            max_kv_len=max(inputs.kv_lens),
        )
        return self.begin_device_step(device_inputs, attention, kv)

    def begin_device_step(self, inputs: DeviceInputs, attention: AttentionShape, kv: Tensor) -> AttentionStep:
        """`begin_step` of inputs that are on the device already. What earlier owners left in the pages need not be
        cleared: the kernels read nothing behind a sequence's last token."""
        angles = tuple(rope_table(inputs.positions, one.inv_freq, one.scale) for one in attention.rotaries)
        return TritonStep(attention, inputs, kv, angles)


@dataclass(frozen=True, slots=True)
class TritonStep:
    """What all layers of a step share."""

    shape: AttentionShape
    inputs: DeviceInputs
    kv: Tensor
    angles: tuple[tuple[Tensor, Tensor], ...]  # cos, sin by number of the rotary

    def write(self, qkv: Tensor, qk_norm: Tensor | None, layer: int, rotary: int = 0) -> Tensor:
        shape, slots = self.shape, self.inputs.slots
        cos, sin = self.angles[rotary]
        return rope_kv_write(qkv, cos, sin, slots, self.kv[layer], shape.num_heads, qk_norm=qk_norm, eps=shape.norm_eps)

    def attend(self, q: Tensor, layer: int, window: int | None, sinks: Tensor | None = None) -> Tensor:
        inputs, scale, softcap, n = self.inputs, self.shape.scale, self.shape.softcap, self.inputs.num_decodes
        kv_layer, out = self.kv[layer], torch.empty_like(q)
        table, starts, kv_lens = inputs.page_table, inputs.query_starts, inputs.kv_lens
        if n:
            decode_attention(
                q[:n], kv_layer, table[:n], kv_lens[:n], scale, window, softcap=softcap, sinks=sinks, out=out[:n]
            )
        if n < inputs.num_seqs:
            prefill_attention(
                q, kv_layer, table[n:], starts[n:], kv_lens[n:], scale, window, softcap=softcap, sinks=sinks, out=out
            )
        return out.flatten(1)


def _product(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    match weight:
        case Tensor():
            return F.linear(x, weight, bias)
        case Fp8Weight():
            return fp8_linear(x, weight, bias)
        case Int4Weight() if x.dtype in INT4_DTYPES and weight.group_size % MIN_GROUP == 0:
            return int4_linear(x, weight, bias)
        case _:
            return F.linear(x, dequantize(weight, x.dtype), bias)
