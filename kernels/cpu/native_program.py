"""Programs of the native kernels: buffers for the values of a record, and the record as the library reads it."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels.cpu.c_interface import BufferRow, Instruction, Op, PackedWeight, Program, Routing
from slipstream.kernels.cpu.recorded_program import Recorded, Value


@dataclass(frozen=True, slots=True)
class BufferKind:
    """Memory for values of this kind: rows of `width` numbers, `copies` for each token or sampled row of a step."""

    width: int
    dtype: torch.dtype
    on_samples: bool
    copies: int


class Buffers:
    """The buffers of the programs of one model, which are never run at the same time: they share them. Memory grows to
    what the largest step needs."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype  # the model's
        self._kinds: list[BufferKind] = []
        self._tensors: list[Tensor] = []
        self._num_tokens = self._num_samples = 0  # that there is room for
        self.addresses = (ctypes.c_void_p * 0)()

    def __getitem__(self, number: int) -> Tensor:
        return self._tensors[number]

    def place(self, instructions: Sequence[Recorded], kept: Sequence[Value]) -> dict[Value, int]:
        """The buffer of each value: one that no value needs any more, or a new one. Those of `kept` are theirs for
        the whole program, and in all programs with such values the same."""
        last_use = {v: i for i, one in enumerate(instructions) for v in (one.source, one.target) if v is not None}
        last_use |= dict.fromkeys(kept, len(instructions))  # never
        free: dict[BufferKind, list[int]] = defaultdict(list)
        for number in reversed(range(len(self._kinds))):
            free[self._kinds[number]].append(number)
        buffer_of: dict[Value, int] = {}

        def give_buffer(value: Value) -> None:
            kind = self._kind_of(value)
            buffer_of[value] = free[kind].pop() if free[kind] else self._add(kind)

        for value in kept:
            give_buffer(value)
        for i, one in enumerate(instructions):
            if one.target is not None and one.target not in buffer_of:
                give_buffer(one.target)
            for used in {one.source, one.target}:
                if used is not None and last_use[used] == i:
                    free[self._kind_of(used)].append(buffer_of[used])
        return buffer_of

    def reserve(self, num_tokens: int, num_samples: int) -> bool:
        """Makes room for a step of this size. Whether `addresses` are others than before."""
        if self._tensors and num_tokens <= self._num_tokens and num_samples <= self._num_samples:
            return False
        self._num_tokens = max(num_tokens, self._num_tokens)
        self._num_samples = max(num_samples, self._num_samples)
        rows = [(self._num_samples if kind.on_samples else self._num_tokens) * kind.copies for kind in self._kinds]
        known = [*self._tensors, *([None] * (len(rows) - len(self._tensors)))]
        self._tensors = [
            torch.empty(num_rows, kind.width, dtype=kind.dtype) if old is None or len(old) < num_rows else old
            for num_rows, kind, old in zip(rows, self._kinds, known, strict=True)
        ]
        self.addresses = (ctypes.c_void_p * len(rows))(*(tensor.data_ptr() for tensor in self._tensors))
        return True

    @contextmanager
    def replaced(self, number: int, tensor: Tensor) -> Iterator[None]:
        """Meanwhile the library reads `tensor` in place of a buffer."""
        self.addresses[number] = tensor.data_ptr()
        yield
        self.addresses[number] = self._tensors[number].data_ptr()

    def rows(self) -> ctypes.Array[BufferRow]:
        """What the library must know of each."""
        return (BufferRow * len(self._kinds))(
            *(BufferRow(kind.width, kind.width * kind.dtype.itemsize) for kind in self._kinds)
        )

    def _add(self, kind: BufferKind) -> int:
        self._kinds.append(kind)
        return len(self._kinds) - 1

    def _kind_of(self, value: Value) -> BufferKind:
        return BufferKind(value.width, torch.float32 if value.is_f32 else self._dtype, value.on_samples, value.copies)


class NativeProgram:
    """A record in the library's form. `attention` are the kinds of attention, (window, on samples, page group), in the
    order in which the library knows them; the weights are at the address `weights`. `kept` are the values that are
    asked for after a step."""

    def __init__(
        self,
        instructions: Sequence[Recorded],
        buffers: Buffers,
        kept: Sequence[Value],
        attention: Sequence[tuple[int | None, bool, int]],
        weights: int,
    ) -> None:
        self._recorded = tuple(instructions)
        self.buffer_of = buffers.place(instructions, kept)
        self._rows = buffers.rows()
        self._ns = (ctypes.c_int64 * len(instructions))()
        self._instructions = (Instruction * len(instructions))()
        self.native = Program(self._instructions, self._rows)
        for native, one in zip(self._instructions, instructions, strict=True):
            native.op, native.on_samples, native.gathers = one.op, one.on_samples, one.gathers
            native.source = 0 if one.source is None else self.buffer_of[one.source]
            native.target = 0 if one.target is None else self.buffer_of[one.target]
            native.epilogue, native.layer, native.rotary = one.epilogue, one.layer, one.rotary
            native.eps, native.scale, native.group = one.eps, one.scale, one.group
            if one.op is Op.ATTEND:
                native.attention = attention.index((one.window, one.on_samples, one.group))
            if one.linear is not None:
                native.packed = PackedWeight(one.linear.shape, weights + one.linear.offset)
            native.weight = None if one.weight is None else weights + one.weight.offset
            native.bias = None if one.bias is None else weights + one.bias.offset
            native.moe_layer, native.expert_bytes = one.moe_layer, one.expert_bytes
            if one.routing is not None:
                own, routing = one.own_experts, one.routing
                native.routing = Routing(
                    routing.num_experts, own.start, len(own), routing.top_k, int(routing.renormalise)
                )
            if one.swiglu is not None:
                native.alpha, native.limit = one.swiglu.alpha, one.swiglu.limit

    def __len__(self) -> int:
        return len(self._recorded)

    def time(self, is_on: bool) -> None:
        """Starts (from zero) or stops to measure the time of each instruction."""
        ctypes.memset(self._ns, 0, ctypes.sizeof(self._ns))
        self.native.ns = self._ns if is_on else None

    def seconds(self) -> dict[str, float]:
        """By label (`Recorded.label`), since `time(True)`."""
        seconds: dict[str, float] = defaultdict(float)
        for one, ns in zip(self._recorded, self._ns, strict=True):
            seconds[one.label] += ns / 1e9
        return dict(seconds)
