"""A program of the native kernels as it is recorded (see `native_ops`), before its values have buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.kernels.cpu.c_interface import Epilogue, Op, WeightShape
from slipstream.kernels.moe.gate import ClampedSwiglu
from slipstream.kernels.moe.grouped_experts import Routing


@dataclass(frozen=True, slots=True)
class NativeTensor:
    """A tensor in the packed weights, with rows of `width` numbers; norms, biases and sinks are float32. `name` is that
    of the stored tensor."""

    offset: int  # bytes from the beginning of the weights
    width: int
    name: str
    dtype: torch.dtype = torch.float32

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


@dataclass(frozen=True, slots=True)
class NativeWeight:
    """A matrix in the packed weights. `name` is that of the first stored tensor in it."""

    offset: int  # bytes from the beginning of the weights
    shape: WeightShape
    num_outputs: int  # those that are missing up to there are not written
    name: str


@dataclass(frozen=True, slots=True)
class NativeExperts:
    """A matrix for each of a run of experts, one behind the other. `first` is that of the first."""

    first: NativeWeight
    count: int
    stride: int  # bytes from one to the next


@dataclass(eq=False, slots=True)
class Value:
    """[tokens, width], or [samples, width] if `on_samples`, in float32 or in the model's type; `copies` times as many
    rows if they are of pairs of a row and an expert."""

    width: int
    is_f32: bool
    on_samples: bool = False
    copies: int = 1


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The rows of `value` that are sampled, before anything has gathered them."""

    value: Value


@dataclass(frozen=True, slots=True)
class Recorded:
    """An instruction before its values have buffers (see `Instruction` in program.hpp)."""

    op: Op
    source: Value | None = None
    target: Value | None = None
    on_samples: bool = False
    gathers: bool = False
    epilogue: Epilogue = Epilogue.STORE
    layer: int = 0
    group: int = 0  # of pages
    window: int | None = None
    rotary: int = 0
    eps: float = 0.0
    scale: float = 1.0
    weight: NativeTensor | None = None
    linear: NativeWeight | None = None
    bias: NativeTensor | None = None
    routing: Routing | None = None
    moe_layer: int = 0
    expert_bytes: int = 0
    own_experts: range = range(0)
    swiglu: ClampedSwiglu | None = None

    @property
    def adds(self) -> bool:
        """Whether the target keeps what it has, and more is added."""
        return self.epilogue is Epilogue.ADD_RESIDUAL or self.op is Op.ADD_NORM

    @property
    def label(self) -> str:
        """What the time of the instruction is counted as: its weight's name without the layer, or the op."""
        named = self.linear if self.linear is not None else self.weight
        if named is None or self.op is Op.WRITE:
            return self.op.name.lower()
        return named.name.removesuffix(".weight").rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class ProgramStop:
    """Before instruction `index`: the keys and values of `layer` are in their pages; or `reduced` is to be summed over
    ranks, and then added to `add_to`."""

    index: int
    layer: int | None = None
    reduced: Value | None = None
    add_to: Value | None = None


def in_page_groups(instructions: Sequence[Recorded], places: Sequence[tuple[int, int]]) -> tuple[Recorded, ...]:
    """The program for pages of several groups: `places` are the group and the slot of each layer."""
    placed = []
    for one in instructions:
        group, slot = places[one.layer] if one.op in (Op.WRITE, Op.ATTEND) else (0, one.layer)
        placed.append(replace(one, group=group, layer=slot))
    return tuple(placed)


def only_samples(instructions: Sequence[Recorded]) -> tuple[Recorded, ...]:
    """The program for steps that want nothing but scores, and only of last rows of sequences: behind the last keys and
    values, whatever the sampled rows need is gathered once and computed for these rows alone."""
    last_write = max(i for i, one in enumerate(instructions) if one.op is Op.WRITE)
    short = list(instructions[: last_write + 1])
    gathered: dict[Value, Value] = {}

    def of_samples(value: Value) -> Value:
        if value.on_samples:
            return value
        if value not in gathered:
            gathered[value] = Value(value.width, value.is_f32, on_samples=True, copies=value.copies)
            short.append(Recorded(Op.GATHER, value, gathered[value], on_samples=True))
        return gathered[value]

    for one in instructions[last_write + 1 :]:
        if one.op is Op.ATTEND:  # reads the queries of all rows, and writes where they are
            short.append(replace(one, on_samples=True))
            continue
        source = None if one.source is None else of_samples(one.source)
        target = one.target
        if target is not None and not target.on_samples:
            if not one.adds:
                of_rows = Value(target.width, target.is_f32, on_samples=True, copies=target.copies)
                gathered.setdefault(target, of_rows)
            target = of_samples(target)
        short.append(replace(one, source=source, target=target, on_samples=True, gathers=False))
    return tuple(short)
