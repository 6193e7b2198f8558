"""Other processes' shared memory: that of the router and of clients."""

from __future__ import annotations

import mmap
import os
from threading import Lock
from typing import Any

import numpy as np

SHM = "/dev/shm/"
MAX_FILES = 64


class MappedFile:
    """A file in /dev/shm. It stays mapped, because its pages then need to be found only once, until the last view of
    it is gone."""

    __slots__ = ("_file", "view")

    def __init__(self, key: str) -> None:
        self._file = -1
        self._file = os.open(SHM + key.lstrip("/"), os.O_RDWR | os.O_CLOEXEC)
        self.view = memoryview(mmap.mmap(self._file, 0))

    @property
    def has_name(self) -> bool:
        """Whether it still is the file of that name; a client may have made another one."""
        return os.fstat(self._file).st_nlink > 0

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class SharedFiles:
    """Gives the bytes of places, to the thread that reads from the router and to the one that executes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._files: dict[str, MappedFile] = {}

    def bytes_at(self, key: str, offset: int, num_bytes: int) -> memoryview:
        """Raises OSError if there is no such file, ValueError if it is too small."""
        with self._lock:
            file = self._files.get(key)
            if file is None or not file.has_name or len(file.view) < offset + num_bytes:
                file = self._open(key)
        if len(file.view) < offset + num_bytes:
            raise ValueError(f"/dev/shm/{key} has {len(file.view)} bytes, a tensor ends at {offset + num_bytes}")
        return file.view[offset : offset + num_bytes]

    def write(self, key: str, offset: int, num_bytes: int, data: Any) -> None:
        """Puts a tensor where a client wants it."""
        copy_bytes(self.bytes_at(key, offset, num_bytes), data)

    def _open(self, key: str) -> MappedFile:
        """Maps a file anew. Files without a name would keep their memory: they go."""
        for known in [name for name, file in self._files.items() if name == key or not file.has_name]:
            del self._files[known]
        if len(self._files) >= MAX_FILES:
            del self._files[next(iter(self._files))]
        file = self._files[key] = MappedFile(key)
        return file


def lost_file(exception: BaseException) -> str:
    """The key of the file that was not there, as it happens to that of a process that has just ended; else empty."""
    if isinstance(exception, FileNotFoundError) and str(exception.filename).startswith(SHM):
        return str(exception.filename).removeprefix(SHM)
    return ""


def copy_bytes(target: Any, data: Any) -> None:
    """Without holding the interpreter's lock while many bytes are copied."""
    source = data.reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    np.copyto(np.frombuffer(target, dtype=np.uint8), source)
