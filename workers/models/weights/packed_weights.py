"""A rank's share of a model in the form that the native kernels read, as one contiguous block of bytes.

The model family decides what is in it, and in which order: it reads its weights from `PackedSource`, which returns the
place of each and remembers what has to go there. Weight matrices are packed (`kernels/cpu/linear.hpp`) straight from
the mapped checkpoint, by all threads of the team; quantised ones as codes and scales. The embedding is unchanged, in
the model's dtype; vectors (norms, biases) are float32.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor

from slipstream.kernels.cpu.c_interface import PackJob, SourceRows, WeightShape
from slipstream.kernels.cpu.recorded_program import NativeExperts, NativeTensor, NativeWeight
from slipstream.kernels.moe.gate import ExpertGate
from slipstream.kernels.moe.grouped_experts import ExpertWeights
from slipstream.kernels.ops import Weight
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.directory.stored_quantization import OnLoad, Stored
from slipstream.workers.models.interface.weight_source import Linear, WeightSource
from slipstream.workers.models.sharding.rank_share import ExpertsShare, LinearShare, TensorPart
from slipstream.workers.models.weights.checkpoint import Checkpoint, open_checkpoint
from slipstream.workers.models.weights.packed_form import KINDS, LinearReader, PackedForm
from slipstream.workers.models.weights.quantized_reader import QuantizedReader
from slipstream.workers.models.weights.weight_cache import Bytes, cached

ALIGNMENT = 64
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class PlainSlot:
    """The place of parts of stored tensors, one after the other."""

    offset: int
    dtype: torch.dtype
    parts: tuple[TensorPart, ...]
    rounded_to: torch.dtype | None = None  # before anything else
    plus: float = 0.0  # added to each number

    @property
    def num_bytes(self) -> int:
        return sum(_num_elements(part) for part in self.parts) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class LinearSlot:
    """The place of a packed weight. `paired`: gate and up, side by side. `is_plain`: not quantised, whatever the
    checkpoint or the configuration says of linear layers."""

    offset: int
    num_bytes: int
    form: PackedForm
    paired: bool
    share: LinearShare
    bias: PlainSlot | None
    is_plain: bool

    @property
    def shape(self) -> WeightShape:
        return WeightShape(self.form.kind, self.paired, self.share.num_rows, self.share.num_columns, self.form.group)


class PackedSource:
    """A `WeightSource` of places, which it assigns one after the other. They depend only on the rank's share, the
    dtype, the forms of linear layers, and the library."""

    def __init__(self, reader: LinearReader, library: ctypes.CDLL) -> None:
        self.plain: list[PlainSlot] = []
        self.linears: list[LinearSlot] = []
        self.num_bytes = 0
        self._reader = reader
        self._library = library

    def vector(self, part: TensorPart, *, plus: float = 0.0) -> Tensor:
        return self._vectors((part,), plus)

    def head_vectors(self, parts: list[TensorPart], *, plus: float = 0.0) -> Tensor:
        return self._vectors(tuple(parts), plus)

    def linear(self, share: LinearShare, *, gated: bool = False) -> Linear:
        slot = self._linear(share, self._reader.form(share), paired=gated)
        return Linear(self._weight(slot), self._bias(slot.bias, share.num_rows))

    def router(self, share: LinearShare) -> Linear:
        slot = self._linear(share, PackedForm(KINDS[self._reader.dtype]), is_plain=True)
        return Linear(self._weight(slot), self._bias(slot.bias, share.num_rows))

    def experts(self, share: ExpertsShare, gate: ExpertGate) -> ExpertWeights:
        gate_up, gate_up_bias = self._stack(share.gate_up, paired=True)
        down, down_bias = self._stack(share.down, paired=False)
        return ExpertWeights(gate_up, down, gate_up_bias, down_bias, gate, share.first)

    def embedding(self, part: TensorPart, num_rows: int) -> Tensor:
        del num_rows  # the kernels know where the rank's rows end
        slot = self._plain((part,), self._reader.dtype)
        return cast(Tensor, NativeTensor(slot.offset, part.num_columns, part.name, slot.dtype))

    def output_layer(self, part: TensorPart, num_rows: int, embedding: Tensor, *, is_tied: bool) -> Weight:
        del embedding, is_tied  # products read another form
        share, form = LinearShare((part,), None), PackedForm(KINDS[self._reader.dtype])
        return self._weight(self._linear(share, form, is_plain=True), num_rows)

    def _vectors(self, parts: tuple[TensorPart, ...], plus: float) -> Tensor:
        slot = self._plain(parts, torch.float32, self._reader.dtype, plus)
        return cast(Tensor, NativeTensor(slot.offset, parts[0].num_rows, parts[0].name))

    def _weight(self, slot: LinearSlot, num_outputs: int | None = None) -> Weight:
        name = slot.share.weights[0].name
        return cast(Tensor, NativeWeight(slot.offset, slot.shape, num_outputs or slot.shape.outputs, name))

    def _bias(self, slot: PlainSlot | None, width: int) -> Tensor | None:
        return None if slot is None else cast(Tensor, NativeTensor(slot.offset, width, slot.parts[0].name))

    def _stack(self, shares: tuple[LinearShare, ...], *, paired: bool) -> tuple[Tensor, Tensor | None]:
        """Weights one behind the other, and then all biases. All have the form of the first."""
        form = self._reader.form(shares[0])
        slots = [self._linear(replace(share, biases=None), form, paired=paired) for share in shares]
        parts = tuple(part for share in shares for part in share.biases or ())
        bias = self._plain(parts, torch.float32) if parts else None
        first = cast(NativeWeight, self._weight(slots[0]))
        stack = NativeExperts(first, len(slots), -(-slots[0].num_bytes // ALIGNMENT) * ALIGNMENT)
        return cast(Tensor, stack), self._bias(bias, shares[0].num_rows)

    def _plain(
        self,
        parts: tuple[TensorPart, ...],
        dtype: torch.dtype,
        rounded_to: torch.dtype | None = None,
        plus: float = 0.0,
    ) -> PlainSlot:
        slot = PlainSlot(self.num_bytes, dtype, parts, rounded_to, plus)
        self.plain.append(slot)
        self._take(slot.num_bytes)
        return slot

    def _linear(
        self, share: LinearShare, form: PackedForm, *, paired: bool = False, is_plain: bool = False
    ) -> LinearSlot:
        shape = WeightShape(form.kind, paired, share.num_rows, share.num_columns, form.group)
        offset, num_bytes = self.num_bytes, self._library.slipstream_packed_bytes(shape)
        self._take(num_bytes)
        bias = None if share.biases is None else self._plain(share.biases, torch.float32)
        slot = LinearSlot(offset, num_bytes, form, paired, share, bias, is_plain)
        self.linears.append(slot)
        return slot

    def _take(self, num_bytes: int) -> None:
        self.num_bytes += -(-num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """What `PackedSource` has assigned, in memory: mapped and shared, or private to this process (see
    `weight_cache`)."""

    linears: tuple[LinearSlot, ...]
    contents: Bytes

    @property
    def address(self) -> int:
        address: int = self.contents.ctypes.data
        return address


def load_packed(
    model_dir: Path,
    read: Callable[[WeightSource], M],
    dtype: torch.dtype,
    library: ctypes.CDLL,
    cache_dir: Path | None,
    *,
    stored: Stored | None = None,
    on_load: OnLoad = "none",
    files: SteadyFiles | None = None,
) -> tuple[M, PackedWeights]:
    """Maps the packed weights that `read` asks for, after packing them if no worker of this host has done so before;
    and returns what `read` has made of their places.

    `stored` says how the checkpoint is quantised, `on_load` what to make of it if it is not. `files` are those of the
    directory, as they were before anything was read. Raises ModelError if the checkpoint is not what `read` asks for,
    and FilesChanged if it is exchanged while it is packed; then nothing of it stays in the cache.
    """
    files = SteadyFiles.of(model_dir) if files is None else files

    def fill(contents: Bytes) -> None:
        _fill(contents, source, reader, library)
        files.check()

    with open_checkpoint(model_dir) as checkpoint:
        quantized = None if stored is None else QuantizedReader(checkpoint, stored)
        reader = LinearReader(checkpoint, dtype, quantized, on_load)
        source = PackedSource(reader, library)
        made = read(source)
        layout = (source.plain, source.linears, source.num_bytes)
        identity = (library.slipstream_pack_format(), files.weights_key, stored, on_load, layout)
        key = hashlib.blake2b(repr(identity).encode(), digest_size=32).digest()
        contents = cached(cache_dir, key, source.num_bytes, fill)
    return made, PackedWeights(tuple(source.linears), contents)


def _fill(contents: Bytes, source: PackedSource, reader: LinearReader, library: ctypes.CDLL) -> None:
    for slot in source.plain:
        _copy(contents, slot, reader.checkpoint)
    plain = replace(reader, quantized=None, on_load="none")
    for linear in source.linears:
        keep: list[Tensor] = []
        rows = list((plain if linear.is_plain else reader).rows(linear.share, linear.form, keep))
        job = PackJob(linear.shape, (SourceRows * len(rows))(*rows), len(rows), contents.ctypes.data + linear.offset)
        library.slipstream_pack(job, 1)


def _copy(contents: Bytes, slot: PlainSlot, checkpoint: Checkpoint) -> None:
    first = slot.offset
    for part in slot.parts:
        stored, count = checkpoint.mapped(part), _num_elements(part)
        if count:
            to = torch.frombuffer(contents, dtype=slot.dtype, count=count, offset=first).view(stored.shape)
            to.copy_(stored if slot.rounded_to is None else stored.to(slot.rounded_to))
            if slot.plus != 0:
                to.add_(slot.plus)
        first += count * slot.dtype.itemsize


def _num_elements(part: TensorPart) -> int:
    return part.num_rows * (1 if part.is_vector else part.num_columns)
