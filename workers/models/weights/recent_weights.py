"""Bounds the memory that a host keeps for packed weights which no worker uses any more.

Files of packed weights stay in the kernel's page cache when their last worker is gone, so a worker that comes back to
such a model does not read the disk. The kernel takes the memory back where a program needs it; this is about what it
would keep otherwise.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from slipstream.workers.models.weights.weight_cache import SUFFIX

log = logging.getLogger(__name__)


def keep_recent(directory: Path, most_bytes: int) -> None:
    """Takes files out of memory, those that were opened longest ago first, until what is left is no larger than
    `most_bytes`. What a worker has mapped counts, but stays. Errors are logged."""
    try:
        num_bytes = 0
        for path, size in _newest_first(directory):
            num_bytes += size
            if num_bytes > most_bytes:
                _drop(path)
    except OSError as error:
        log.warning("%s: the memory of packed weights cannot be bounded: %s", directory, error)


def _newest_first(directory: Path) -> list[tuple[Path, int]]:
    """All files, and their sizes. Whoever maps one sets its time."""
    with os.scandir(directory) as entries:
        found = [(entry.stat(), Path(entry.path)) for entry in entries if entry.name.endswith(SUFFIX)]
    found.sort(key=lambda one: one[0].st_mtime, reverse=True)
    return [(path, status.st_size) for status, path in found]


def _drop(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(file)  # the kernel drops only what is on the disk
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
