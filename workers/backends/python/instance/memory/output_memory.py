"""The shared memory in which an instance leaves large tensors for the router."""

from __future__ import annotations

import fcntl
import mmap
import os
from threading import Lock
from typing import Any

from slipstream.workers.backends.python.instance.memory.shared_files import SHM, copy_bytes

PAGE_BYTES = mmap.PAGESIZE
REGION_BYTES = 1 << 30  # address space, not memory
KEPT_BYTES = 128 << 20  # of a region that holds nothing


def in_pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


class Region:
    """One file in /dev/shm. Pages get memory when a tensor first lies in them, so that a full /dev/shm is an error of
    `allocate` and not a signal while bytes are copied.

    `_free` are the gaps, as offset -> bytes; neighbouring ones are always joined. Memory up to `_num_backed` exists.
    """

    def __init__(self, key: str, num_bytes: int) -> None:
        self.key = key
        self._file = os.open(SHM + key, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)  # files without a lock are removed by instance hosts
        os.ftruncate(self._file, num_bytes)
        self._map = mmap.mmap(self._file, num_bytes)
        self.view = memoryview(self._map)
        self._free = {0: num_bytes}
        self._used: dict[int, int] = {}
        self._num_backed = 0

    @property
    def is_empty(self) -> bool:
        return not self._used

    def allocate(self, num_bytes: int) -> int | None:
        """The offset of a place in whole pages; None if there is none. Raises OSError if memory is short."""
        size = in_pages(num_bytes)
        offset = min((begin for begin, gap in self._free.items() if gap >= size), default=None)
        if offset is None:
            return None
        end = offset + size
        if end > self._num_backed:
            os.posix_fallocate(self._file, self._num_backed, end - self._num_backed)
            self._num_backed = end
        gap = self._free.pop(offset)
        if gap > size:
            self._free[end] = gap - size
        self._used[offset] = size
        return offset

    def release(self, offset: int) -> None:
        size = self._used.pop(offset, None)
        if size is None:
            return
        size += self._free.pop(offset + size, 0)
        for begin, gap in self._free.items():
            if begin + gap == offset:
                self._free[begin] = gap + size
                break
        else:
            self._free[offset] = size
        if not self._used and self._num_backed > KEPT_BYTES:
            self._map.madvise(mmap.MADV_REMOVE, KEPT_BYTES, self._num_backed - KEPT_BYTES)
            self._num_backed = KEPT_BYTES

    def remove(self) -> None:
        """The file's name goes; who has it mapped keeps the memory."""
        os.unlink(SHM + self.key)
        os.close(self._file)


class OutputMemory:
    """Regions of one connection. A new connection has new ones, so what an earlier router releases late is unknown."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock = Lock()
        self._regions: dict[str, Region] = {}
        self._num_created = 0

    def put(self, data: Any, num_bytes: int) -> tuple[str, int] | None:
        """Copies a tensor's bytes; where they are, until `release`. None if /dev/shm has no room."""
        try:
            with self._lock:
                region, offset = self._place(num_bytes)
        except OSError:
            return None
        copy_bytes(region.view[offset : offset + num_bytes], data)
        return region.key, offset

    def release(self, key: str, offset: int) -> None:
        """Of a place that is known; others are ignored."""
        with self._lock:
            region = self._regions.get(key)
            if region is None:
                return
            region.release(offset)
            if region.is_empty and len(self._regions) > 1:
                self._regions.pop(key).remove()

    @property
    def num_used(self) -> int:
        return sum(len(region._used) for region in self._regions.values())

    def begin_again(self) -> None:
        """For a new connection: nothing of the earlier one is in use any more."""
        with self._lock:
            for region in self._regions.values():
                region.remove()
            self._regions.clear()

    def _place(self, num_bytes: int) -> tuple[Region, int]:
        for region in self._regions.values():
            offset = region.allocate(num_bytes)
            if offset is not None:
                return region, offset
        self._num_created += 1
        region = Region(f"{self._prefix}-{self._num_created}", max(REGION_BYTES, in_pages(num_bytes)))
        self._regions[region.key] = region
        offset = region.allocate(num_bytes)
        assert offset is not None, num_bytes
        return region, offset
