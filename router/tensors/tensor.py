"""A tensor of a request or a response: what it is, and where its bytes lie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class SharedRegion(Protocol):
    """A piece of POSIX shared memory, which this process has mapped. `key` is its name below /dev/shm."""

    @property
    def key(self) -> str: ...
    @property
    def view(self) -> memoryview: ...
    @property
    def is_named(self) -> bool:
        """Whether other processes can still map it by its key: not when its owner has ended."""


@dataclass(frozen=True, slots=True)
class RegionSlice:
    """`num_bytes` bytes at `offset` of a region. It owns nothing: a lease keeps the region."""

    region: SharedRegion
    offset: int
    num_bytes: int

    @property
    def view(self) -> memoryview:
        """The bytes themselves, without a copy."""
        return self.region.view[self.offset : self.offset + self.num_bytes]


TensorData = bytes | bytearray | memoryview | RegionSlice


@dataclass(frozen=True, slots=True)
class Tensor:
    """`datatype` is KServe's name. `data` are the elements in row-major order, little endian; each element of BYTES has
    its length before it (uint32). Whether `data` fits `shape` is checked by the validation of a request, not here."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: TensorData

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        data = self.data
        return data.num_bytes if isinstance(data, RegionSlice) else memoryview(data).nbytes

    @property
    def view(self) -> memoryview:
        """The bytes, without a copy."""
        data = self.data
        return data.view if isinstance(data, RegionSlice) else memoryview(data).cast("B")
