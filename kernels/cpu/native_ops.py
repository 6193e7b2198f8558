"""`Ops` that computes nothing and records: what a model computes in a step becomes a program of the native kernels.

A model is run once with `NativeOps`. Each call appends one or two instructions, and returns a `Value` in place of a
tensor: a name for what the instruction will have computed.

    norm_linear(x, ...)           norm x -> a;  linear a -> b                       b of the model's type
    norm_gated(x, ...)            norm x -> a;  linear a -> b, epilogue silu * up
    linear(a, ..., add_to=x)      linear a, added to x                              x is the float32 residual stream
    linear_norm(a, ..., add_to=x) linear a -> b;  add_norm b, added to x            b in float32
    norm_experts(x, ...)          norm x -> a;  linear a -> scores;  route scores;  permute a -> pairs;
                                  experts pairs -> b, epilogue gate;  experts b -> c;  combine c, added to x
    step.write(qkv, ...)          write, in place
    step.attend(q, ...)           attend q -> b

Where ranks add up or a layer's pages are complete, the record has a `ProgramStop`: the program is run up to there, and
then something else has to happen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torch import Tensor

from slipstream.kernels.cpu.c_interface import Epilogue, Op
from slipstream.kernels.cpu.recorded_program import (
    NativeExperts,
    NativeTensor,
    NativeWeight,
    ProgramStop,
    Recorded,
    SampledRows,
    Value,
)
from slipstream.kernels.elementwise.gated import Gate
from slipstream.kernels.moe.gate import ClampedSwiglu, ExpertGate
from slipstream.kernels.ops import AttentionShape, MoeWeights, Ranks, StepInputs, Weight

GATES: dict[Gate, Epilogue] = {"silu": Epilogue.SILU_MUL, "gelu_tanh": Epilogue.GELU_MUL}


def expert_epilogue(gate: ExpertGate) -> Epilogue:
    return Epilogue.CLAMPED_SWIGLU if isinstance(gate, ClampedSwiglu) else GATES[gate]


@dataclass
class NativeOps:
    """Weights are `NativeTensor` and `NativeWeight`, activations `Value`."""

    instructions: list[Recorded] = field(default_factory=list)
    stops: list[ProgramStop] = field(default_factory=list)

    def pack_weight(self, weight: Tensor) -> Tensor:
        raise TypeError("native weights are packed when they are loaded")

    def embedding(self, token_ids: Tensor, table: Tensor, ranks: Ranks | None = None, scale: float = 1.0) -> Tensor:
        del token_ids  # those of the step
        rows = _of(table, NativeTensor)
        x = Value(rows.width, is_f32=True)
        self.instructions.append(Recorded(Op.EMBED, target=x, weight=rows, scale=scale))
        if ranks is not None and ranks.size > 1:
            self.stops.append(ProgramStop(len(self.instructions), reduced=x))
        return _tensor(x)

    def linear(
        self,
        x: Tensor,
        weight: Weight,
        bias: Tensor | None,
        add_to: Tensor | None = None,
        ranks: Ranks | None = None,
    ) -> Tensor:
        if add_to is None:
            return self._product(x, weight, bias, Epilogue.STORE)
        total = _of(add_to, Value)
        if ranks is None or ranks.size == 1:
            self._append_product(x, weight, bias, Epilogue.ADD_RESIDUAL, total)
        else:
            partial = _of(self._product(x, weight, bias, Epilogue.STORE_F32), Value)
            self.stops.append(ProgramStop(len(self.instructions), reduced=partial, add_to=total))
        return add_to

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
        product = _of(self._product(x, weight, bias, Epilogue.STORE_F32), Value)
        if ranks is not None and ranks.size > 1:
            self.stops.append(ProgramStop(len(self.instructions), reduced=product))
        self.instructions.append(
            Recorded(
                Op.ADD_NORM,
                product,
                _of(add_to, Value),
                product.on_samples,
                eps=eps,
                weight=_of(norm_weight, NativeTensor),
            )
        )
        return add_to

    def norm_linear(
        self, x: Tensor, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None = None
    ) -> Tensor:
        return self._product(self._norm(x, norm_weight, eps), weight, bias, Epilogue.STORE)

    def norm_gated(
        self,
        x: Tensor,
        norm_weight: Tensor,
        eps: float,
        weight: Weight,
        bias: Tensor | None = None,
        gate: Gate = "silu",
    ) -> Tensor:
        return self._product(self._norm(x, norm_weight, eps), weight, bias, GATES[gate])

    def norm_experts(
        self, x: Tensor, norm_weight: Tensor, eps: float, moe: MoeWeights, ranks: Ranks | None = None
    ) -> Tensor:
        normed, total = self._norm(x, norm_weight, eps), _of(x, Value)
        scores: Value = _of(self._product(normed, moe.router, moe.router_bias, Epilogue.STORE_F32), Value)
        source: Value = _of(normed, Value)
        rows, experts = source.on_samples, moe.experts
        gate_up: NativeExperts = _of(experts.gate_up, NativeExperts)
        own = range(experts.first, experts.first + gate_up.count)
        self.instructions.append(Recorded(Op.ROUTE, scores, on_samples=rows, routing=moe.routing, own_experts=own))
        pairs = Value(source.width, is_f32=False, on_samples=rows, copies=moe.routing.top_k)
        layer = sum(one.op is Op.PERMUTE for one in self.instructions)
        self.instructions.append(Recorded(Op.PERMUTE, source, pairs, rows, moe_layer=layer))
        inner = self._expert_products(pairs, experts.gate_up, experts.gate_up_bias, experts.gate)
        outputs = self._expert_products(inner, experts.down, experts.down_bias, None)
        if ranks is None or ranks.size == 1:
            self.instructions.append(Recorded(Op.COMBINE, outputs, total, rows, epilogue=Epilogue.ADD_RESIDUAL))
        else:
            partial = Value(outputs.width, is_f32=True, on_samples=rows)
            self.instructions.append(Recorded(Op.COMBINE, outputs, partial, rows, epilogue=Epilogue.STORE_F32))
            self.stops.append(ProgramStop(len(self.instructions), reduced=partial, add_to=total))
        return x

    def begin_step(self, inputs: StepInputs, attention: AttentionShape, kv: Tensor) -> NativeStep:
        del inputs, kv  # those that the program is run with
        self.instructions.extend(Recorded(Op.ROTARY, rotary=rotary) for rotary in range(len(attention.rotaries)))
        return NativeStep(self, attention)

    def record_layer_done(self, layer: int) -> None:
        self.stops.append(ProgramStop(len(self.instructions), layer=layer))

    def record_scores(self, run: Callable[[Tensor], Tensor], hidden: Value) -> Value:
        """Records how `run` makes scores of the sampled rows of `hidden`. Returns them: float32, [samples, width]."""
        scores: Value = _of(run(cast(Tensor, SampledRows(hidden))), Value)
        last = self.instructions[-1]
        if last.target is not scores or last.epilogue is not Epilogue.STORE:
            raise TypeError("the scores of a model must be the product with its output layer")
        scores.is_f32 = True
        self.instructions[-1] = replace(last, epilogue=Epilogue.STORE_F32)
        return scores

    def _norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        source: object = x
        gathers = isinstance(source, SampledRows)
        value: Value = source.value if isinstance(source, SampledRows) else _of(x, Value)
        if not value.is_f32:
            raise TypeError("a norm takes the residual stream")
        on_samples = gathers or value.on_samples
        normed = Value(value.width, is_f32=False, on_samples=on_samples)
        self.instructions.append(
            Recorded(Op.NORM, value, normed, on_samples, gathers, eps=eps, weight=_of(weight, NativeTensor))
        )
        return _tensor(normed)

    def _product(self, x: Tensor, weight: Weight, bias: Tensor | None, epilogue: Epilogue) -> Tensor:
        num_outputs: int = _of(weight, NativeWeight).num_outputs
        width = num_outputs // 2 if epilogue in GATES.values() else num_outputs
        product = Value(width, epilogue is Epilogue.STORE_F32, _of(x, Value).on_samples)
        self._append_product(x, weight, bias, epilogue, product)
        return _tensor(product)

    def _append_product(
        self, x: Tensor, weight: Weight, bias: Tensor | None, epilogue: Epilogue, target: Value
    ) -> None:
        source = _of(x, Value)
        if source.is_f32:
            raise TypeError("a product takes what a norm, a product or attention has made")
        self.instructions.append(
            Recorded(
                Op.LINEAR,
                source,
                target,
                source.on_samples,
                epilogue=epilogue,
                linear=_of(weight, NativeWeight),
                bias=None if bias is None else _of(bias, NativeTensor),
            )
        )

    def _expert_products(self, pairs: Value, stack: Tensor, bias: Tensor | None, gate: ExpertGate | None) -> Value:
        experts: NativeExperts = _of(stack, NativeExperts)
        outputs = experts.first.num_outputs
        swiglu = gate if isinstance(gate, ClampedSwiglu) else None
        epilogue = Epilogue.STORE_F32 if gate is None else expert_epilogue(gate)
        width = outputs if gate is None else outputs // 2
        product = Value(width, gate is None, pairs.on_samples, pairs.copies)
        self.instructions.append(
            Recorded(
                Op.EXPERTS,
                pairs,
                product,
                pairs.on_samples,
                epilogue=epilogue,
                linear=experts.first,
                bias=None if bias is None else _of(bias, NativeTensor),
                expert_bytes=experts.stride,
                swiglu=swiglu,
            )
        )
        return product


@dataclass(frozen=True, slots=True)
class NativeStep:
    ops: NativeOps
    attention: AttentionShape

    def write(self, qkv: Tensor, qk_norm: Tensor | None, layer: int, rotary: int = 0) -> Tensor:
        norm = None if qk_norm is None else _of(qk_norm, NativeTensor)
        self.ops.instructions.append(
            Recorded(Op.WRITE, _of(qkv, Value), layer=layer, rotary=rotary, eps=self.attention.norm_eps, weight=norm)
        )
        return qkv

    def attend(self, q: Tensor, layer: int, window: int | None, sinks: Tensor | None = None) -> Tensor:
        attended = Value(self.attention.num_heads * self.attention.head_dim, is_f32=False)
        weight = None if sinks is None else _of(sinks, NativeTensor)
        self.ops.instructions.append(
            Recorded(Op.ATTEND, _of(q, Value), attended, layer=layer, window=window, weight=weight)
        )
        return _tensor(attended)


def _tensor(value: Value) -> Tensor:
    return cast(Tensor, value)


def _of(value: object, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"only what native ops return can be handed to them, got a {type(value).__name__}")
    return value
