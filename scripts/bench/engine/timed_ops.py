"""`TorchOps` that keeps the time of each op, under names for those of a Llama that native models know, too."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from slipstream.kernels.elementwise.gated import Gate, gated
from slipstream.kernels.elementwise.rms_norm import rms_norm
from slipstream.kernels.ops import AttentionShape, AttentionStep, MoeWeights, Ops, Ranks, StepInputs, TorchOps, Weight
from slipstream.workers.models.llama import Llama
from slipstream.workers.models.ops_model import OpsModel

# The names of `NativeModel.op_times`, in the order of a step.
OPS = {
    "embed_tokens": "embed",
    "rotary": "rotary",
    "input_layernorm": "attention_norm",
    "q_proj": "qkv",
    "write": "write",
    "attend": "attend",
    "gather": "gather",
    "o_proj": "output",
    "post_attention_layernorm": "mlp_norm",
    "gate_proj": "gate_up",
    "down_proj": "down",
    "norm": "final_norm",
    "lm_head": "logits",
    "best": "best",
}


class OpClock:
    """Seconds by op, as the calling thread sees them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def time(self, op: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[op] += time.perf_counter() - begin


class TimedOps:
    """Which linear layer a product belongs to is known by its weight."""

    def __init__(self, model: Llama, clock: OpClock) -> None:
        self._ops = TorchOps()
        self._clock = clock
        self._op_of_weight = {id(model.weights.lm_head): "logits"}
        self._norm_of_op = {"qkv": "attention_norm", "gate_up": "mlp_norm", "logits": "final_norm"}
        for layer in model.weights.layers:
            for op in ("qkv", "output", "gate_up", "down"):
                self._op_of_weight[id(getattr(layer, op).weight)] = op

    def pack_weight(self, weight: Tensor) -> Tensor:
        return self._ops.pack_weight(weight)

    def embedding(self, token_ids: Tensor, table: Tensor, ranks: Ranks | None = None, scale: float = 1.0) -> Tensor:
        with self._clock.time("embed"):
            return self._ops.embedding(token_ids, table, ranks, scale)

    def linear(
        self,
        x: Tensor,
        weight: Weight,
        bias: Tensor | None,
        add_to: Tensor | None = None,
        ranks: Ranks | None = None,
    ) -> Tensor:
        with self._clock.time(self._op_of_weight[id(weight)]):
            return self._ops.linear(x, weight, bias, add_to, ranks)

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
        with self._clock.time(self._op_of_weight[id(weight)]):
            return self._ops.linear_norm(x, weight, bias, norm_weight, eps, add_to, ranks)

    def norm_linear(
        self, x: Tensor, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None = None
    ) -> Tensor:
        with self._clock.time(self._norm_of_op[self._op_of_weight[id(weight)]]):
            normed = rms_norm(x, norm_weight, eps)
        return self.linear(normed, weight, bias)

    def norm_gated(
        self,
        x: Tensor,
        norm_weight: Tensor,
        eps: float,
        weight: Weight,
        bias: Tensor | None = None,
        gate: Gate = "silu",
    ) -> Tensor:
        gate_up = self.norm_linear(x, norm_weight, eps, weight, bias)
        with self._clock.time("gate_up"):
            return gated(gate_up, gate)

    def norm_experts(
        self, x: Tensor, norm_weight: Tensor, eps: float, moe: MoeWeights, ranks: Ranks | None = None
    ) -> Tensor:
        with self._clock.time("experts"):
            return self._ops.norm_experts(x, norm_weight, eps, moe, ranks)

    def begin_step(self, inputs: StepInputs, attention: AttentionShape, kv: Tensor) -> AttentionStep:
        with self._clock.time("rotary"):
            return TimedStep(self._ops.begin_step(inputs, attention, kv), self._clock)


@dataclass(frozen=True, slots=True)
class TimedStep:
    step: AttentionStep
    clock: OpClock

    def write(self, qkv: Tensor, qk_norm: Tensor | None, layer: int, rotary: int = 0) -> Tensor:
        with self.clock.time("write"):
            return self.step.write(qkv, qk_norm, layer, rotary)

    def attend(self, q: Tensor, layer: int, window: int | None, sinks: Tensor | None = None) -> Tensor:
        with self.clock.time("attend"):
            return self.step.attend(q, layer, window, sinks)


def time_ops(model: OpsModel) -> OpClock:
    """From here on `model` counts its ops on the clock that is returned."""
    clock = OpClock()
    assert isinstance(model.decoder, Llama)
    ops: Ops = TimedOps(model.decoder, clock)
    model.decoder.ops = ops
    return clock
