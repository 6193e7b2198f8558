"""Removes files in /dev/shm that dead processes have left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from slipstream.router.tensor_memory.shared_file import PREFIX, SHM

MIN_AGE_S = 2.0  # a younger file may not have been locked yet by its process


def remove_files_of(launch: str, folder: Path = SHM) -> int:
    """Removes the files of an instance whose process has ended. Returns how many there were."""
    paths = list(folder.glob(f"{files_prefix(launch)}*"))
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def files_prefix(launch: str) -> str:
    """How the names of an instance's files begin."""
    return f"{PREFIX}{launch}-"


def remove_files_of_the_dead(folder: Path = SHM, min_age_s: float = MIN_AGE_S) -> int:
    """Removes the files of Slipstream that no process has locked, and returns how many. A process locks its files as
    long as it lives."""
    num_removed = 0
    for path in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or another process removes it
            if time.time() - path.stat().st_ctime >= min_age_s and not is_locked(path):
                path.unlink()
                num_removed += 1
    return num_removed


def is_locked(path: Path) -> bool:
    """Whether the process that has made the file lives. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
