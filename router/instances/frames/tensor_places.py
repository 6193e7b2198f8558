"""Tensors in frames: where their bytes lie, and the payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.router.instances.frames.frame_reader import FrameError, Payload
from slipstream.router.tensor_memory.mapped_files import MappedFiles
from slipstream.router.tensor_memory.region_pool import INLINE_BYTES, RegionLease, RegionPool, RegionPoolFull
from slipstream.router.tensors.tensor import RegionSlice, Tensor

TENSOR_ALIGNMENT = 8  # of tensors in a payload
NO_LEASES: Sequence[RegionLease] = ()
PADDING = bytes(TENSOR_ALIGNMENT)

Place = list[Any]  # [offset, num_bytes] in the payload, or [key, offset, num_bytes]


class PayloadWriter:
    """Collects the tensors of one frame. Where the other end shares memory, large ones are referred to; those that are
    not in shared memory yet, or in that of a process that has ended, are copied into leased places. `borrows`: what is
    put into the payload stays valid until it is sent; else parts of regions are copied."""

    __slots__ = ("_borrows", "_leases", "_pool", "num_bytes", "parts")

    def __init__(self, pool: RegionPool | None, *, borrows: bool = True) -> None:
        self._pool = pool  # None: the other end does not share memory
        self._borrows = borrows
        self.parts: list[Payload] = []
        self.num_bytes = 0
        self._leases: list[RegionLease] = []

    def take_leases(self) -> Sequence[RegionLease]:
        """Those made since the last call, which are now the caller's."""
        if not self._leases:
            return NO_LEASES
        leases, self._leases = self._leases, []
        return leases

    def tensors(self, tensors: Sequence[Tensor]) -> list[list[Any]]:
        return [[tensor.name, tensor.datatype, tensor.shape, self._place(tensor)] for tensor in tensors]

    def _place(self, tensor: Tensor) -> Place:
        data = tensor.data
        if isinstance(data, bytes):
            num_bytes = len(data)
            part: Payload = data
        elif isinstance(data, RegionSlice):
            if self._pool is not None and data.region.is_named:
                return [data.region.key, data.offset, data.num_bytes]
            num_bytes = data.num_bytes
            part = data.view if self._borrows else bytes(data.view)
        else:
            part = tensor.view
            num_bytes = part.nbytes
        if num_bytes > INLINE_BYTES and self._pool is not None:
            lease = self._leased(self._pool, part, num_bytes)
            if lease is not None:
                return [self._pool.key, lease.offset, num_bytes]
        return self._inline(part, num_bytes)

    def _leased(self, pool: RegionPool, part: Payload, num_bytes: int) -> RegionLease | None:
        try:
            lease = pool.allocate(num_bytes)
        except RegionPoolFull:
            return None
        lease.view[:] = part
        self._leases.append(lease)
        return lease

    def _inline(self, part: Payload, num_bytes: int) -> Place:
        gap = -self.num_bytes % TENSOR_ALIGNMENT
        if gap:
            self.parts.append(PADDING[:gap])
        offset = self.num_bytes + gap
        self.parts.append(part)
        self.num_bytes = offset + num_bytes
        return [offset, num_bytes]


class PlaceReader:
    """Finds the bytes of the tensors of a frame from one instance. `own_prefix` is how the names of its files begin."""

    __slots__ = ("_files", "_own_prefix")

    def __init__(self, files: MappedFiles, own_prefix: str) -> None:
        self._files = files
        self._own_prefix = own_prefix

    def inputs(self, fields: Sequence[Sequence[Any]], payload: Payload) -> list[Tensor]:
        """Of a call: they may lie in any shared memory that the caller can read."""
        return [
            Tensor(name, datatype, tuple(shape), self.data(place, payload)) for name, datatype, shape, place in fields
        ]

    def outputs(
        self, fields: Sequence[Sequence[Any]], payload: Payload, into: dict[str, RegionSlice] | None
    ) -> tuple[list[Tensor], list[tuple[str, int]]]:
        """The tensors of a response, and the places in the instance's own memory, which are to be given back. Others
        can only lie where `into` asked for them: the memory of an input is used again after the request."""
        tensors: list[Tensor] = []
        places: list[tuple[str, int]] = []
        for name, datatype, shape, place in fields:
            if len(place) == 2:
                offset, num_bytes = place
                data: Payload | RegionSlice = _part(payload, offset, num_bytes)
            else:
                key, offset, num_bytes = place
                if key.startswith(self._own_prefix):
                    data = self._files.place(key, offset, num_bytes)
                    places.append((key, offset))
                else:
                    data = _written_into(into, name, key, offset, num_bytes)
            tensors.append(Tensor(name, datatype, tuple(shape), data))
        return tensors, places

    def lost(self, key: str | None) -> str | None:
        """An instance did not find this file. Its tensors are copied from now on; None if it is not an instance's."""
        return key if key is not None and self._files.forget_file(key) else None

    def data(self, place: Place, payload: Payload) -> Payload | RegionSlice:
        """Raises FrameError, ValueError or OSError if there is no such place."""
        if len(place) == 2:
            return _part(payload, place[0], place[1])
        return self._files.place(*place)


def _part(payload: Payload, offset: int, num_bytes: int) -> Payload:
    if offset < 0 or num_bytes < 0 or offset + num_bytes > len(payload):
        raise FrameError(f"{num_bytes} bytes at {offset} do not lie within a payload of {len(payload)} bytes")
    return payload[offset : offset + num_bytes]


def _written_into(into: dict[str, RegionSlice] | None, name: str, key: str, offset: int, num_bytes: int) -> RegionSlice:
    wanted = into.get(name) if into is not None else None
    if wanted is None or wanted.region.key != key or wanted.offset != offset or wanted.num_bytes < num_bytes:
        raise FrameError(f"output {name!r} lies at {offset} of {key!r}, which is not the instance's own memory")
    return RegionSlice(wanted.region, offset, num_bytes)
