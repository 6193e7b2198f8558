"""What calls of `Ops` are recorded as, and where their values lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream.kernels.cpu.c_interface import Epilogue, Op, WeightKind, WeightShape
from slipstream.kernels.cpu.native_ops import NativeOps
from slipstream.kernels.cpu.native_program import Buffers
from slipstream.kernels.cpu.recorded_program import NativeTensor, NativeWeight, Value, only_samples
from slipstream.kernels.ops import AttentionShape, Rotary

HIDDEN, HEADS, HEAD_DIM, VOCAB = 64, 4, 8, 100
SHAPE = AttentionShape(HEADS, 2, HEAD_DIM, (Rotary(torch.ones(4)),), 1e-5, frozenset({None}), torch.bfloat16, 1.0)


def weight(num_outputs: int, num_inputs: int, name: str = "w.weight") -> Any:
    return NativeWeight(0, WeightShape(WeightKind.BF16, False, num_outputs, num_inputs, 0), num_outputs, name)


def norm(name: str = "n.weight") -> Any:
    return NativeTensor(0, HIDDEN, name)


class Ranks:
    rank, size = 0, 2

    def all_reduce(self, x: Any) -> Any:
        raise AssertionError("nothing is computed while a record is made")


def record(ops: NativeOps, ranks: Ranks | None = None) -> tuple[Value, Value]:
    """A layer and the output layer: the hidden states and the scores."""
    step: Any = ops.begin_step(None, SHAPE, None)  # type: ignore[arg-type]
    x: Any = ops.embedding(None, norm("embed"), ranks)  # type: ignore[arg-type]
    for layer in range(3):
        qkv = ops.norm_linear(x, norm(), 1e-5, weight(64, HIDDEN))
        q = step.write(qkv, None, layer)
        ops.record_layer_done(layer)
        ops.linear(step.attend(q, layer, None), weight(HIDDEN, 32), None, add_to=x, ranks=ranks)
        inner = ops.norm_gated(x, norm(), 1e-5, weight(192, HIDDEN))
        ops.linear(inner, weight(HIDDEN, 96), None, add_to=x, ranks=ranks)
    return x, ops.record_scores(lambda hidden: ops.norm_linear(hidden, norm(), 1e-5, weight(VOCAB, HIDDEN)), x)


def test_scores_are_of_sampled_rows_and_float32() -> None:
    ops = NativeOps()
    _, scores = record(ops)
    *_, last_norm, product = ops.instructions
    assert (scores.width, scores.is_f32, scores.on_samples) == (VOCAB, True, True)
    assert (last_norm.op, last_norm.gathers, last_norm.on_samples) == (Op.NORM, True, True)
    assert (product.epilogue, product.on_samples) == (Epilogue.STORE_F32, True)


def test_layers_share_their_buffers() -> None:
    ops = NativeOps()
    kept = record(ops)
    buffers = Buffers(torch.bfloat16)
    buffer_of = buffers.place(ops.instructions, kept)
    # The hidden states, the scores, what norms, qkv, attention and the gate give, and the norm of the sampled rows.
    assert len(set(buffer_of.values())) == len(buffers.rows()) <= 7
    assert [buffer_of[value] for value in kept] == [0, 1]
    for one in ops.instructions:
        if one.source is not None and one.target is not None:
            assert buffer_of[one.source] != buffer_of[one.target]


def test_programs_find_what_is_kept_in_the_same_buffers() -> None:
    ops = NativeOps()
    kept = record(ops)
    buffers = Buffers(torch.bfloat16)
    programs = [buffers.place(one, kept) for one in (ops.instructions, only_samples(ops.instructions))]
    assert [[buffer_of[value] for value in kept] for buffer_of in programs] == [[0, 1], [0, 1]]


def test_behind_the_last_keys_and_values_only_sampled_rows_are_computed() -> None:
    ops = NativeOps()
    record(ops)
    short = only_samples(ops.instructions)
    last_write = max(i for i, one in enumerate(short) if one.op is Op.WRITE)
    assert short[: last_write + 1] == tuple(ops.instructions[: last_write + 1])
    assert all(one.on_samples for one in short[last_write + 1 :])
    gathered = [one.source for one in short if one.op is Op.GATHER]
    assert len(gathered) == 2  # what attention gave, and the residual stream
    assert not any(one.gathers for one in short)


def test_a_group_stops_where_its_ranks_add_up() -> None:
    ops = NativeOps()
    hidden, _ = record(ops, Ranks())
    sums = [stop for stop in ops.stops if stop.reduced is not None]
    assert [stop.add_to for stop in sums] == [None] + [hidden] * 6
    assert [ops.instructions[stop.index - 1].op for stop in sums] == [Op.EMBED] + [Op.LINEAR] * 6
    assert all(one.epilogue is not Epilogue.ADD_RESIDUAL for one in ops.instructions)


def test_what_is_no_value_is_refused() -> None:
    ops = NativeOps()
    with pytest.raises(TypeError, match="only what native ops return can be handed to them, got a Tensor"):
        ops.linear(torch.zeros(1, HIDDEN), weight(8, HIDDEN), None)
    x: Any = Value(HIDDEN, is_f32=True)
    with pytest.raises(TypeError, match="a product takes what"):
        ops.linear(x, weight(8, HIDDEN), None)
    with pytest.raises(TypeError, match="a norm takes the residual stream"):
        ops.norm_linear(Value(HIDDEN, is_f32=False), norm(), 1e-5, weight(8, HIDDEN))  # type: ignore[arg-type]
