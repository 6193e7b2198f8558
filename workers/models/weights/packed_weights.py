"""A rank's share of a model in the form that the native kernels read, as one contiguous block of bytes.

    embedding | layer 0: norms, qkv, qk norms, output, gate_up, down | layer 1 | ... | final norm | lm_head

Weight matrices are packed (`kernels/cpu/linear.hpp`) straight from the mapped checkpoint, by all threads of the team;
quantised ones as codes and scales. The rest is unchanged, in the model's dtype, except that biases are float32.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from slipstream.kernels.cpu.c_interface import PackedWeight, PackJob, SourceRows, WeightShape
from slipstream.workers.models.directory.rank_share import LayerShare, LinearShare, RankShare, TensorPart
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.directory.stored_quantization import OnLoad, Stored
from slipstream.workers.models.weights.checkpoint import Checkpoint, open_checkpoint
from slipstream.workers.models.weights.packed_form import KINDS, LinearReader, PackedForm
from slipstream.workers.models.weights.quantized_reader import QuantizedReader
from slipstream.workers.models.weights.weight_cache import Bytes, cached

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PlainSlot:
    """The place of parts of stored tensors, one after the other."""

    offset: int
    dtype: torch.dtype
    parts: tuple[TensorPart, ...]

    @property
    def num_bytes(self) -> int:
        return sum(_num_elements(part) for part in self.parts) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class LinearSlot:
    """The place of a packed weight. `paired`: gate and up, side by side."""

    offset: int
    num_bytes: int
    form: PackedForm
    paired: bool
    share: LinearShare
    bias: PlainSlot | None

    @property
    def shape(self) -> WeightShape:
        return _weight_shape(self.share, self.form, self.paired)


@dataclass(frozen=True, slots=True)
class LayerSlots:
    attention_norm: PlainSlot
    qkv: LinearSlot
    qk_norm: PlainSlot | None  # [heads + kv_heads, head_dim]
    output: LinearSlot
    mlp_norm: PlainSlot
    gate_up: LinearSlot
    down: LinearSlot


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The layout of the block. It depends only on the rank's share, the dtype, the forms of linear layers, and the
    library."""

    embedding: PlainSlot
    layers: tuple[LayerSlots, ...]
    final_norm: PlainSlot
    lm_head: LinearSlot  # never quantised
    num_bytes: int

    @staticmethod
    def of(share: RankShare, reader: LinearReader, library: ctypes.CDLL) -> PackedLayout:
        planner = _LayoutBuilder(reader, library)
        lm_head = LinearShare((share.lm_head,), None)
        return PackedLayout(
            embedding=planner.plain(share.embedding),
            layers=tuple(planner.layer(layer) for layer in share.layers),
            final_norm=planner.plain(share.final_norm),
            lm_head=planner.linear(lm_head, PackedForm(KINDS[reader.dtype])),
            num_bytes=planner.num_bytes,
        )

    def plain_slots(self) -> Iterator[PlainSlot]:
        yield self.embedding
        for layer in self.layers:
            yield from (layer.attention_norm, layer.mlp_norm)
            if layer.qk_norm is not None:
                yield layer.qk_norm
        yield self.final_norm
        yield from (linear.bias for linear in self.linear_slots() if linear.bias is not None)

    def linear_slots(self) -> Iterator[LinearSlot]:
        for layer in self.layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)
        yield self.lm_head


class PackedWeights:
    """`contents` with its `layout`; either mapped and shared, or private to this process (see `weight_cache`)."""

    def __init__(self, layout: PackedLayout, contents: Bytes) -> None:
        self.layout = layout
        self._contents = contents

    def address(self, slot: PlainSlot | None) -> int | None:
        return None if slot is None else self._contents.ctypes.data + slot.offset

    def packed(self, slot: LinearSlot) -> PackedWeight:
        return PackedWeight(slot.shape, self._contents.ctypes.data + slot.offset)


def load_packed(
    model_dir: Path,
    share: RankShare,
    dtype: torch.dtype,
    library: ctypes.CDLL,
    cache_dir: Path | None,
    *,
    stored: Stored | None = None,
    on_load: OnLoad = "none",
    files: SteadyFiles | None = None,
) -> PackedWeights:
    """Maps a rank's packed weights, after packing them if no worker of this host has done so before.

    `stored` says how the checkpoint is quantised, `on_load` what to make of it if it is not. `files` are those of the
    directory, as they were before anything was read. Raises ModelError if the checkpoint is not what `share` says, and
    FilesChanged if it is exchanged while it is packed; then nothing of it stays in the cache.
    """
    files = SteadyFiles.of(model_dir) if files is None else files

    def fill(contents: Bytes) -> None:
        _fill(contents, layout, reader, library)
        files.check()

    with open_checkpoint(model_dir) as checkpoint:
        quantized = None if stored is None else QuantizedReader(checkpoint, stored)
        reader = LinearReader(checkpoint, dtype, quantized, on_load)
        layout = PackedLayout.of(share, reader, library)
        identity = (library.slipstream_pack_format(), files.weights_key, stored, on_load, layout)
        key = hashlib.blake2b(repr(identity).encode(), digest_size=32).digest()
        contents = cached(cache_dir, key, layout.num_bytes, fill)
    return PackedWeights(layout, contents)


def _fill(contents: Bytes, layout: PackedLayout, reader: LinearReader, library: ctypes.CDLL) -> None:
    for slot in layout.plain_slots():
        _copy(contents, slot, reader.checkpoint)
    plain = replace(reader, quantized=None, on_load="none")
    for linear in layout.linear_slots():
        keep: list[Tensor] = []
        rows = list((plain if linear is layout.lm_head else reader).rows(linear.share, linear.form, keep))
        job = PackJob(linear.shape, (SourceRows * len(rows))(*rows), len(rows), contents.ctypes.data + linear.offset)
        library.slipstream_pack(job, 1)


def _copy(contents: Bytes, slot: PlainSlot, checkpoint: Checkpoint) -> None:
    first = slot.offset
    for part in slot.parts:
        stored, count = checkpoint.mapped(part), _num_elements(part)
        if count:
            torch.frombuffer(contents, dtype=slot.dtype, count=count, offset=first).view(stored.shape).copy_(stored)
        first += count * slot.dtype.itemsize


def _weight_shape(share: LinearShare, form: PackedForm, paired: bool) -> WeightShape:
    return WeightShape(form.kind, paired, share.num_rows, share.num_columns, form.group)


def _num_elements(part: TensorPart) -> int:
    return part.num_rows * (1 if len(part.stored_shape) == 1 else part.num_columns)


class _LayoutBuilder:
    """Assigns places, one after the other."""

    def __init__(self, reader: LinearReader, library: ctypes.CDLL) -> None:
        self.num_bytes = 0
        self._reader = reader
        self._library = library

    def layer(self, share: LayerShare) -> LayerSlots:
        return LayerSlots(
            attention_norm=self.plain(share.attention_norm),
            qkv=self.linear(share.qkv),
            qk_norm=self._qk_norm(share),
            output=self.linear(share.output),
            mlp_norm=self.plain(share.mlp_norm),
            gate_up=self.linear(share.gate_up, paired=True),
            down=self.linear(share.down),
        )

    def plain(self, *parts: TensorPart, dtype: torch.dtype | None = None) -> PlainSlot:
        slot = PlainSlot(self.num_bytes, dtype or self._reader.dtype, parts)
        self._take(slot.num_bytes)
        return slot

    def linear(self, share: LinearShare, form: PackedForm | None = None, *, paired: bool = False) -> LinearSlot:
        form = self._reader.form(share) if form is None else form
        offset = self.num_bytes
        num_bytes = self._library.slipstream_packed_bytes(_weight_shape(share, form, paired))
        self._take(num_bytes)
        bias = None if share.biases is None else self.plain(*share.biases, dtype=torch.float32)
        return LinearSlot(offset, num_bytes, form, paired, share, bias)

    def _qk_norm(self, share: LayerShare) -> PlainSlot | None:
        """The same weight for all query heads, another for all key heads."""
        if share.query_norm is None or share.key_norm is None:
            return None
        head_dim = share.query_norm.num_rows
        num_heads, num_kv_heads = (part.num_rows // head_dim for part in share.qkv.weights[:2])
        return self.plain(*[share.query_norm] * num_heads, *[share.key_norm] * num_kv_heads)

    def _take(self, num_bytes: int) -> None:
        self.num_bytes += -(-num_bytes // ALIGNMENT) * ALIGNMENT
