"""The router's own shared memory, from which places for tensors are leased."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from slipstream.router.tensors.tensor import RegionSlice

INLINE_BYTES = 65_536  # larger tensors go through a region


class RegionPoolFull(RuntimeError):  # noqa: N818 - names the condition
    """The shared memory for tensors has no room for this allocation."""


class RegionLease:
    """A place in the pool's memory, from `RegionPool.allocate` until `release`."""

    @property
    def slice(self) -> RegionSlice:
        """The whole place."""
        raise NotImplementedError

    @property
    def view(self) -> memoryview:
        """Its bytes, to be written."""
        raise NotImplementedError

    def slice_of(self, offset: int, num_bytes: int) -> RegionSlice:
        """A part of the place; `offset` counts from its beginning."""
        raise NotImplementedError

    def release(self) -> None:
        """Gives the place back. Idempotent. Nothing may read or write it afterwards."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """`num_leases` and `leased_bytes` return to zero when no request runs."""

    num_leases: int
    leased_bytes: int
    limit_bytes: int


class RegionPool:
    """One for a router process. Its file in /dev/shm grows up to `limit_bytes`; None: half of what the file system and
    the control group allow."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        raise NotImplementedError

    def allocate(self, num_bytes: int, head_bytes: int = 0) -> RegionLease:
        """A place of `num_bytes`, whose byte `head_bytes` is at a multiple of 64: there begin the tensors of a body
        with a head of that length. Raises RegionPoolFull."""
        raise NotImplementedError

    @property
    def usage(self) -> PoolUsage:
        raise NotImplementedError

    def close(self) -> None:
        """Removes the file. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> RegionPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
