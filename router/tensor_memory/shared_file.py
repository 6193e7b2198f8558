"""Files in /dev/shm, mapped."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from pathlib import Path

SHM = Path("/dev/shm")
PREFIX = "slipstream-"  # of the names of all our files there


class MappedRegion:
    """A mapped file of shared memory. The mapping lives as long as a view of it does. `is_named` as long as others can
    map it by its key."""

    __slots__ = ("_memory", "is_named", "key", "view")

    def __init__(self, key: str, memory: mmap.mmap) -> None:
        self.key = key
        self.view = memoryview(memory)
        self.is_named = True
        self._memory = memory

    @property
    def num_bytes(self) -> int:
        return len(self._memory)

    def drop_pages(self, offset: int, num_bytes: int) -> None:
        """Gives the memory of a part back to the machine, for all who have mapped it. It then reads as zeros."""
        self._memory.madvise(mmap.MADV_REMOVE, offset, num_bytes)


class SharedFile:
    """A file in /dev/shm that this process makes and removes. While the process lives it has a lock on the file, by
    which others see that it is in use. It takes up memory only where `reserve` was called."""

    def __init__(self, key: str, num_bytes: int) -> None:
        """Raises OSError."""
        self._path = SHM / key
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, num_bytes)
            self.region = MappedRegion(key, mmap.mmap(self._descriptor, num_bytes))
        except OSError:
            self.remove()
            raise

    def reserve(self, offset: int, num_bytes: int) -> None:
        """Makes sure that the memory of a part exists: a write where it does not, on a full file system, kills the
        process (SIGBUS). Raises OSError."""
        os.posix_fallocate(self._descriptor, offset, num_bytes)

    def remove(self) -> None:
        """Removes the name. Mappings stay. Idempotent."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def map_file(key: str) -> MappedRegion:
    """Maps a file that another process has made. Raises ValueError for what is no name, OSError if it is not there."""
    if not key or "/" in key or key in (".", ".."):
        raise ValueError(f"{key!r} is no name of a file in /dev/shm")
    descriptor = os.open(SHM / key, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return MappedRegion(key, mmap.mmap(descriptor, os.fstat(descriptor).st_size))
    finally:
        os.close(descriptor)


def memory_id() -> str:
    """Names the shared memory that this process sees: the machine (until it starts anew) and the file system, of which
    each container may have its own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{SHM.stat().st_dev}"
