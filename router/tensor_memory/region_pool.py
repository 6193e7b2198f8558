"""The router's own shared memory, from which places for tensors are leased."""

from __future__ import annotations

import errno
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from slipstream.router.process.container_limits import memory_limit_bytes
from slipstream.router.tensor_memory.free_ranges import FreeRanges
from slipstream.router.tensor_memory.shared_file import PREFIX, SHM, MappedRegion, SharedFile
from slipstream.router.tensors.tensor import RegionSlice

INLINE_BYTES = 65_536  # larger tensors go through a region
UNIT_BYTES = 4096  # places are multiples of a page
ALIGNMENT_BYTES = 64  # of tensors: a cache line, and more than any vector instruction asks for
GROWTH_UNITS = 1024  # the file grows by at least 4 MiB
ADDRESS_FACTOR = 8  # places that are promised have addresses, of which there are so many times more than memory
MOST_BYTES = 8 << 30  # unless the configuration says otherwise
MEM_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)


class RegionPoolFull(RuntimeError):  # noqa: N818 - names the condition
    """The shared memory for tensors has no room for this allocation."""


class RegionLease:
    """A place in the pool's memory, from `RegionPool.allocate` or `promise` until `release`."""

    __slots__ = ("_num_units", "_pool", "_start_unit", "num_bytes", "offset")

    def __init__(self, pool: RegionPool, start_unit: int, num_units: int, offset: int, num_bytes: int) -> None:
        self._pool: RegionPool | None = pool
        self._start_unit = start_unit
        self._num_units = num_units
        self.offset = offset
        self.num_bytes = num_bytes

    @property
    def slice(self) -> RegionSlice:
        """The whole place."""
        return RegionSlice(self._held_by.region, self.offset, self.num_bytes)

    @property
    def view(self) -> memoryview:
        """Its bytes, to be written."""
        return self._held_by.region.view[self.offset : self.offset + self.num_bytes]

    def grow(self, num_bytes: int) -> bool:
        """Makes the memory of the first `num_bytes` of a place that was promised. False: there is none."""
        end = -(-(self.offset + num_bytes) // UNIT_BYTES)
        try:
            self._held_by.reserve(self._start_unit, end)
        except OSError:
            return False
        return True

    def slice_of(self, offset: int, num_bytes: int) -> RegionSlice:
        """A part of the place; `offset` counts from its beginning. Raises ValueError if it reaches beyond the end."""
        if offset < 0 or num_bytes < 0 or offset + num_bytes > self.num_bytes:
            raise ValueError(f"{num_bytes} bytes at {offset} do not lie within {self.num_bytes} bytes")
        return RegionSlice(self._held_by.region, self.offset + offset, num_bytes)

    def release(self) -> None:
        """Gives the place back. Idempotent. Nothing may read or write it afterwards."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.take_back(self._start_unit, self._num_units)

    @property
    def units(self) -> tuple[int, int]:
        """The first one, and the one after the last."""
        return self._start_unit, self._start_unit + self._num_units

    @property
    def _held_by(self) -> RegionPool:
        if self._pool is None:
            raise ValueError("the lease has been released")
        return self._pool


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """`num_leases` and `leased_bytes` return to zero when no request runs. `reserved_bytes` is the memory that the file
    takes up."""

    num_leases: int
    leased_bytes: int
    reserved_bytes: int
    limit_bytes: int


class RegionPool:
    """One for a router process: a file in /dev/shm, mapped once, which takes up at most `limit_bytes` of memory; None:
    `default_limit_bytes`. The file is made at the first allocation. Raises ValueError."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        if limit_bytes is not None and limit_bytes < UNIT_BYTES:
            raise ValueError(f"limit_bytes must be at least {UNIT_BYTES}, got {limit_bytes}")
        self._limit_units = (default_limit_bytes() if limit_bytes is None else limit_bytes) // UNIT_BYTES
        self._free = FreeRanges(self._limit_units * ADDRESS_FACTOR)
        self._file: SharedFile | None = None
        self._num_leases = 0
        self._leased_units = 0
        self._exists = bytearray(self._free.size)  # for each unit, whether the file has memory for it
        self._reserved_units = 0
        self._reserved_end = 0  # nothing exists from here on
        self._peak_end = 0  # the highest end of a place since the last `trim`
        self._is_closed = False

    @property
    def region(self) -> MappedRegion:
        """The whole file. Valid as long as there is a lease."""
        assert self._file is not None, "a lease has made it"
        return self._file.region

    @property
    def limit_bytes(self) -> int:
        return self._limit_units * UNIT_BYTES

    @property
    def key(self) -> str:
        """The file's name; "": there is none yet."""
        return "" if self._file is None else self._file.region.key

    def allocate(self, num_bytes: int, head_bytes: int = 0) -> RegionLease:
        """A place of `num_bytes`, whose byte `head_bytes` is at a multiple of 64: there begin the tensors of a body
        with a head of that length. Raises RegionPoolFull."""
        lease = self.promise(num_bytes, head_bytes)
        try:
            self.reserve(*lease.units)
        except OSError as error:
            lease.release()
            is_at_limit = error.errno == errno.EDQUOT
            text = (
                self._full_text(num_bytes)
                if is_at_limit
                else f"no room for {num_bytes} bytes in {SHM}: {error.strerror}"
            )
            raise RegionPoolFull(text) from error
        return lease

    def promise(self, num_bytes: int, head_bytes: int = 0) -> RegionLease:
        """The same without memory: `grow` makes it, before anything is written. Raises RegionPoolFull."""
        shift = -head_bytes % ALIGNMENT_BYTES
        num_units = max(1, -(-(shift + num_bytes) // UNIT_BYTES))
        start = self._free.take(num_units) if num_units <= self._limit_units and not self._is_closed else None
        if start is None:
            raise RegionPoolFull(self._full_text(num_bytes))
        try:
            self._make_file()
        except OSError as error:
            self._free.give(start, num_units)
            raise RegionPoolFull(f"no room for {num_bytes} bytes in {SHM}: {error.strerror}") from error
        self._num_leases += 1
        self._leased_units += num_units
        return RegionLease(self, start, num_units, start * UNIT_BYTES + shift, num_bytes)

    def take_back(self, start_unit: int, num_units: int) -> None:
        """For `RegionLease.release`."""
        self._free.give(start_unit, num_units)
        self._num_leases -= 1
        self._leased_units -= num_units

    def reserve(self, begin: int, end: int) -> None:
        """Makes the memory of these units, where there is none. Raises OSError; EDQUOT: it would exceed the limit."""
        self._peak_end = max(self._peak_end, end)
        first = self._exists.find(0, begin, end)
        if first < 0:
            return
        assert self._file is not None, "a lease has made it"
        if self._reserved_units + self._exists.count(0, first, end) > self._limit_units:
            self._drop_free()
        if self._reserved_units + self._exists.count(0, first, end) > self._limit_units:
            raise OSError(errno.EDQUOT, "the limit of the pool is reached")
        more = min(first + GROWTH_UNITS, self._free.size)
        if more > end and self._reserved_units + self._exists.count(0, first, more) <= self._limit_units:
            end = more
        self._file.reserve(first * UNIT_BYTES, (end - first) * UNIT_BYTES)
        self._reserved_units += self._exists.count(0, first, end)
        self._exists[first:end] = b"\1" * (end - first)
        self._reserved_end = max(self._reserved_end, end)

    def trim(self) -> None:
        """Gives memory that was not used since the last call back to the machine. To be called now and then."""
        begin, end = max(self._peak_end, self._free.used_end), self._reserved_end
        if begin < end:
            self._drop(begin, end)
            self._reserved_end = begin
        self._peak_end = self._free.used_end

    @property
    def usage(self) -> PoolUsage:
        return PoolUsage(
            self._num_leases,
            self._leased_units * UNIT_BYTES,
            self._reserved_units * UNIT_BYTES,
            self.limit_bytes,
        )

    def close(self) -> None:
        """Removes the file; nothing is allocated any more. Idempotent."""
        self._is_closed = True
        if self._file is not None:
            self._file.remove()

    def __enter__(self) -> RegionPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drop_free(self) -> None:
        """Gives the memory of all that is not leased back to the machine."""
        for begin, end in self._free.parts():
            end = min(end, self._reserved_end)
            if begin < end and self._exists.find(1, begin, end) >= 0:
                self._drop(begin, end)

    def _drop(self, begin: int, end: int) -> None:
        self.region.drop_pages(begin * UNIT_BYTES, (end - begin) * UNIT_BYTES)
        self._reserved_units -= self._exists.count(1, begin, end)
        self._exists[begin:end] = bytes(end - begin)

    def _full_text(self, num_bytes: int) -> str:
        in_use = f"{self._reserved_units * UNIT_BYTES} of {self.limit_bytes} bytes are in use"
        return f"no room for {num_bytes} bytes in shared memory: {in_use}"

    def _make_file(self) -> None:
        if self._file is None:
            self._file = SharedFile(f"{PREFIX}{secrets.token_hex(8)}-router", self._free.size * UNIT_BYTES)


def default_limit_bytes() -> int:
    """Half of /dev/shm, a quarter of the memory that is available or that this container may have, or 8 GiB: what is
    least."""
    system = os.statvfs(SHM)
    limits = [MOST_BYTES, system.f_frsize * system.f_blocks // 2]
    found = MEM_AVAILABLE.search(Path("/proc/meminfo").read_text())
    if found is not None:
        limits.append(int(found[1]) * 1024 // 4)
    allowed = memory_limit_bytes()
    if allowed is not None:
        limits.append(allowed // 4)
    return max(min(limits), UNIT_BYTES)
