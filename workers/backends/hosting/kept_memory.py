"""Memory that a model frees and takes again with each execution."""

from __future__ import annotations

import contextlib
import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
KEPT_BYTES = 256 << 20
MAPPED_FROM_BYTES = 32 << 20  # the most that glibc takes


def keep_freed_memory() -> None:
    """Of this process, up to `KEPT_BYTES`. By default glibc gives the large arrays between the layers of a model back
    at once, and the kernel has to clear new pages for the next ones: hundreds of page faults an execution. With another
    C library this does nothing."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
