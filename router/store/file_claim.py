"""Which process works on something: the one that has a file of it locked (flock). The lock ends with the process,
however that ends. Every call blocks."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from slipstream.router.store.blob_folder import file_errors


class FileClaim:
    """On one file. With `creates` it is made if it is not there; else there is nothing to claim then."""

    def __init__(self, path: Path, *, creates: bool = False) -> None:
        self._path = path
        self._flags = os.O_RDWR | os.O_CREAT if creates else os.O_RDONLY
        self._fd: int | None = None

    def take(self) -> bool:
        """False: another process has it, or the file is gone. Raises StoreError."""
        with file_errors(self._path):
            try:
                fd = os.open(self._path, self._flags | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                return False
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_there = os.fstat(fd).st_ino == os.stat(self._path).st_ino  # it was not removed just before
            except (BlockingIOError, FileNotFoundError):
                is_there = False
            except OSError:
                os.close(fd)
                raise
            if not is_there:
                os.close(fd)
                return False
            self._fd = fd
            return True

    @property
    def is_held(self) -> bool:
        """By this object."""
        return self._fd is not None

    def leave(self) -> None:
        """Safe to call twice."""
        if self._fd is not None:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = None
