"""Memory for a KV pool of which other processes on the host can be given a read-only view."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os

log = logging.getLogger(__name__)

# Seals that keep anybody from shrinking the file under a reader, which would kill that with SIGBUS.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class PoolMemory:
    """`num_bytes` of zeroed, page-aligned memory: `buffer` to work in, and `file`, a read-only descriptor of the same
    memory to hand out. If the kernel cannot provide that, `file` is None (after a warning) and the memory is private.

    The memory is a file without a name (memfd). It is not limited by the size of /dev/shm, and disappears with its last
    user, however that ends. Like any memory, it is taken from the machine when it is written, not when it is allocated.
    Raises MemoryError if there is not enough address space.
    """

    def __init__(self, num_bytes: int) -> None:
        self.file: int | None = None
        try:
            self.buffer, self.file = _shared(num_bytes)
        except OSError as error:
            log.warning("no shared memory for the KV pool (%s): pages will go to other workers by UCX", error)
            try:
                self.buffer = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError as private_error:
                raise MemoryError(f"no {num_bytes} bytes for the KV pool: {private_error}") from private_error
        with contextlib.suppress(OSError):  # if the administrator allows it
            self.buffer.madvise(mmap.MADV_HUGEPAGE)

    def close(self) -> None:
        """Hand out no more views. The memory stays for as long as somebody uses it."""
        if self.file is not None:
            os.close(self.file)
            self.file = None


def _shared(num_bytes: int) -> tuple[mmap.mmap, int]:
    file = os.memfd_create("slipstream-kv-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, num_bytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        buffer = mmap.mmap(file, num_bytes, mmap.MAP_SHARED)
        # A descriptor that was opened separately, for reading only, cannot be used to write.
        return buffer, os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(file)


def view_of(file: int, num_bytes: int) -> mmap.mmap:
    """Maps another process's pool for reading. Raises ValueError if it is not sealed or has another size, OSError."""
    if fcntl.fcntl(file, fcntl.F_GET_SEALS) & SEALS != SEALS:
        raise ValueError("the pool's memory is not sealed")
    if os.fstat(file).st_size != num_bytes:
        raise ValueError(f"the pool's memory has {os.fstat(file).st_size} bytes, not {num_bytes}")
    return mmap.mmap(file, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
