"""A rank's share of a model in the form that the native kernels read, in one run of bytes.

    embedding | layer 0: norms, qkv, qk norms, output, gate_up, down | layer 1 | ... | final norm | lm_head

Matrices of products are packed (`kernels/cpu/linear.hpp`), straight from the mapped checkpoint by all threads of the
team; the rest is as it was, in the model's dtype, and biases in float32.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from slipstream.kernels.cpu.interface import PackedWeight, PackJob, Scalar, SourceRows, WeightKind, WeightShape
from slipstream.workers.models.checkpoint import Checkpoint, open_checkpoint
from slipstream.workers.models.rank_share import LayerShare, LinearShare, Part, RankShare
from slipstream.workers.models.weight_cache import Bytes, cached

ALIGNMENT = 64
SCALARS = {torch.float32: Scalar.F32, torch.bfloat16: Scalar.BF16, torch.float16: Scalar.F16}
KINDS = {torch.float32: WeightKind.F32, torch.bfloat16: WeightKind.BF16}


@dataclass(frozen=True, slots=True)
class PlainSlot:
    """Where parts of stored tensors lie, one behind the other."""

    offset: int
    dtype: torch.dtype
    parts: tuple[Part, ...]

    @property
    def num_bytes(self) -> int:
        return sum(_num_elements(part) for part in self.parts) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class LinearSlot:
    """Where a packed weight lies. `paired`: gate and up, side by side."""

    offset: int
    num_bytes: int
    kind: WeightKind
    paired: bool
    weights: tuple[Part, ...]
    bias: PlainSlot | None

    @property
    def shape(self) -> WeightShape:
        outputs = sum(part.num_rows for part in self.weights)
        return WeightShape(self.kind, self.paired, outputs, self.weights[0].num_columns, 0)


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
    """Follows from a rank's share, the dtype and the library alone."""

    embedding: PlainSlot
    layers: tuple[LayerSlots, ...]
    final_norm: PlainSlot
    lm_head: LinearSlot
    num_bytes: int

    @staticmethod
    def of(share: RankShare, dtype: torch.dtype, library: ctypes.CDLL) -> PackedLayout:
        """`dtype` is float32 or bfloat16."""
        planner = _Planner(dtype, library)
        return PackedLayout(
            embedding=planner.plain(share.embedding),
            layers=tuple(planner.layer(layer) for layer in share.layers),
            final_norm=planner.plain(share.final_norm),
            lm_head=planner.linear(LinearShare((share.lm_head,), None)),
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
    """`contents` laid out by `layout`; mapped and shared, or this process's own (see `weight_cache`)."""

    def __init__(self, layout: PackedLayout, contents: Bytes) -> None:
        self.layout = layout
        self._contents = contents

    def address(self, slot: PlainSlot | None) -> int | None:
        return None if slot is None else self._contents.ctypes.data + slot.offset

    def packed(self, slot: LinearSlot) -> PackedWeight:
        return PackedWeight(slot.shape, self._contents.ctypes.data + slot.offset)


def load_packed(
    model_dir: Path, share: RankShare, dtype: torch.dtype, library: ctypes.CDLL, cache_dir: Path | None
) -> PackedWeights:
    """Maps a rank's packed weights; packs them first where no worker of this host has done so before.

    Raises ModelError if the checkpoint is not what `share` says.
    """
    layout = PackedLayout.of(share, dtype, library)
    with open_checkpoint(model_dir) as checkpoint:
        key = hashlib.blake2b(repr((library.slipstream_pack_format(), checkpoint.identity(), layout)).encode())
        contents = cached(
            cache_dir, key.digest()[:32], layout.num_bytes, lambda into: _fill(into, layout, checkpoint, library)
        )
    return PackedWeights(layout, contents)


def _fill(contents: Bytes, layout: PackedLayout, checkpoint: Checkpoint, library: ctypes.CDLL) -> None:
    for slot in layout.plain_slots():
        _copy(contents, slot, checkpoint)
    slots = list(layout.linear_slots())
    jobs = (PackJob * len(slots))()
    mapped: list[Tensor] = []  # must stay until they have been read
    for job, linear in zip(jobs, slots, strict=True):
        rows = (SourceRows * len(linear.weights))()
        for row, part in zip(rows, linear.weights, strict=True):
            mapped.append(stored := _readable(checkpoint.mapped(part)))
            row.outputs, row.values, row.stride = stored.shape[0], stored.data_ptr(), stored.stride(0)
            row.values_type = SCALARS[stored.dtype]
        job.shape, job.sources, job.num_sources = linear.shape, rows, len(rows)
        job.packed = contents.ctypes.data + linear.offset
    library.slipstream_pack(jobs, len(jobs))


def _copy(contents: Bytes, slot: PlainSlot, checkpoint: Checkpoint) -> None:
    first = slot.offset
    for part in slot.parts:
        stored, count = checkpoint.mapped(part), _num_elements(part)
        if count:
            torch.frombuffer(contents, dtype=slot.dtype, count=count, offset=first).view(stored.shape).copy_(stored)
        first += count * slot.dtype.itemsize


def _readable(stored: Tensor) -> Tensor:
    return stored if stored.dtype in SCALARS else stored.float()


def _num_elements(part: Part) -> int:
    return part.num_rows * (1 if len(part.stored_shape) == 1 else part.num_columns)


class _Planner:
    """Gives out places, one behind the other."""

    def __init__(self, dtype: torch.dtype, library: ctypes.CDLL) -> None:
        self.num_bytes = 0
        self._dtype = dtype
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

    def plain(self, *parts: Part, dtype: torch.dtype | None = None) -> PlainSlot:
        slot = PlainSlot(self.num_bytes, dtype or self._dtype, parts)
        self._take(slot.num_bytes)
        return slot

    def linear(self, share: LinearShare, *, paired: bool = False) -> LinearSlot:
        kind = KINDS[self._dtype]
        shape = WeightShape(kind, paired, share.num_rows, share.num_columns, 0)
        num_bytes, offset = self._library.slipstream_packed_bytes(shape), self.num_bytes
        self._take(num_bytes)
        bias = None if share.biases is None else self.plain(*share.biases, dtype=torch.float32)
        return LinearSlot(offset, num_bytes, kind, paired, share.weights, bias)

    def _qk_norm(self, share: LayerShare) -> PlainSlot | None:
        """The same weight for all query heads, another for all key heads."""
        if share.query_norm is None or share.key_norm is None:
            return None
        head_dim = share.query_norm.num_rows
        num_heads, num_kv_heads = (part.num_rows // head_dim for part in share.qkv.weights[:2])
        return self.plain(*[share.query_norm] * num_heads, *[share.key_norm] * num_kv_heads)

    def _take(self, num_bytes: int) -> None:
        self.num_bytes += -(-num_bytes // ALIGNMENT) * ALIGNMENT
