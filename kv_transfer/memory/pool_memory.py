"""Memory for a KV pool of which other processes on the host can be given a read-only view."""

from __future__ import annotations

import fcntl
import logging
import os

from slipstream.kv_transfer.memory.huge_pages import (
    HUGE_BYTES,
    SETTINGS,
    Memory,
    map_memory,
    num_huge_bytes,
    return_memory,
    take_huge_pages,
)

log = logging.getLogger(__name__)

# Seals that keep anybody from shrinking the file under a reader, which would kill that with SIGBUS.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class PoolMemory:
    """`num_bytes` of zeroed memory: `buffer` to work in, and `file`, a read-only descriptor of the same memory to hand
    out. `file` is None if the memory is private: because it is not to be shared, or because the kernel cannot provide
    memory that is (after a warning).

    The memory is a file without a name (memfd). It is not limited by the size of /dev/shm, and disappears with its last
    user, however that ends. Like any memory, it is taken from the machine when it is written or when `take` is called.
    Memory that `is_elastic` is to be given back in parts, and so is not asked for in huge pages: one of those would
    take 2 MiB for the few bytes of it that are in use. Raises MemoryError if there is not enough address space.
    """

    def __init__(self, num_bytes: int, *, is_shared: bool = True, is_elastic: bool = False) -> None:
        self.file: int | None = None
        self._is_shared = False
        if is_shared:
            try:
                self.buffer, self.file = _shared(num_bytes, is_elastic)
                self._is_shared = True
                return
            except OSError as error:
                log.warning("no shared memory for the KV pool (%s): pages will go to other workers by UCX", error)
        try:
            self.buffer = map_memory(num_bytes, is_huge=not is_elastic)
        except OSError as error:
            raise MemoryError(f"no {num_bytes} bytes for the KV pool: {error}") from error

    def take(self) -> None:
        """Take the memory from the machine now, before anything is written to it: in huge pages, as far as the kernel
        has some. If it has not, that is logged."""
        take_huge_pages(self.buffer)
        num_bytes = len(self.buffer) // HUGE_BYTES * HUGE_BYTES
        if (num_huge := num_huge_bytes(self.buffer)) < num_bytes:
            log.info(
                "%d of %d MiB of the KV pool are in huge pages, so moving its pages takes longer: a kernel before 6.1 "
                "gives them if %r is in %s, a later one as long as it has free memory in pieces of 2 MiB",
                num_huge >> 20,
                num_bytes >> 20,
                "madvise" if self.file is None else "advise",
                str(SETTINGS / ("enabled" if self.file is None else "shmem_enabled")),
            )

    def give_back(self, first: int, end: int) -> None:
        """Return bytes `first .. end` to the system, as far as whole pages of the machine lie within. They are zero
        when they are next read. A peer that still reads them through a view finds zeros, too. Raises OSError."""
        return_memory(self.buffer, first, end, self._is_shared)

    def close(self) -> None:
        """Hand out no more views. The memory stays for as long as somebody uses it."""
        if self.file is not None:
            os.close(self.file)
            self.file = None


def _shared(num_bytes: int, is_elastic: bool) -> tuple[Memory, int]:
    file = os.memfd_create("slipstream-kv-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, num_bytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        buffer = map_memory(num_bytes, file, is_huge=not is_elastic)
        # A descriptor that was opened separately, for reading only, cannot be used to write.
        return buffer, os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(file)


def view_of(file: int, num_bytes: int) -> Memory:
    """Maps another process's pool for reading. Raises ValueError if it is not sealed or has another size, OSError."""
    if fcntl.fcntl(file, fcntl.F_GET_SEALS) & SEALS != SEALS:
        raise ValueError("the pool's memory is not sealed")
    if os.fstat(file).st_size != num_bytes:
        raise ValueError(f"the pool's memory has {os.fstat(file).st_size} bytes, not {num_bytes}")
    return map_memory(num_bytes, file, is_writable=False)
