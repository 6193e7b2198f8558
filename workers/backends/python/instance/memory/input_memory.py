"""Tensors that lie in another process's shared memory, as memory of this one."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any, Callable

import numpy as np

from slipstream.workers.backends.python.instance.memory.output_memory import PAGE_BYTES, SHM, copy_bytes

MAX_OPEN_FILES = 64


class Mapping(mmap.mmap):
    """A private mapping of some pages: it costs no copy, and what is written to it only this process sees. `release`
    is called when the last array that shows it is gone."""

    release: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.release is not None:
            self.release()


class OpenFiles:
    """Files in /dev/shm that stay open, because the router uses the same ones for many requests."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}

    def file_of(self, key: str) -> int:
        """The file that has this name now. Raises OSError."""
        file = self._files.get(key)
        if file is not None:
            if os.fstat(file).st_nlink:
                return file
            del self._files[key]
            os.close(file)
        if len(self._files) >= MAX_OPEN_FILES:
            os.close(self._files.pop(next(iter(self._files))))
        file = os.open(SHM + key.lstrip("/"), os.O_RDWR | os.O_CLOEXEC)
        self._files[key] = file
        return file

    def map_privately(self, key: str, offset: int, num_bytes: int) -> tuple[Mapping, int]:
        """The pages of a tensor, and where in them it begins. Raises OSError or ValueError."""
        begin = offset // PAGE_BYTES * PAGE_BYTES
        mapping = Mapping(self.file_of(key), offset - begin + num_bytes, flags=mmap.MAP_PRIVATE, offset=begin)
        return mapping, offset - begin

    def write(self, key: str, offset: int, num_bytes: int, data: Any) -> None:
        """Puts a tensor where a client wants it. Raises OSError or ValueError."""
        begin = offset // PAGE_BYTES * PAGE_BYTES
        mapping = mmap.mmap(self.file_of(key), offset - begin + num_bytes, offset=begin)
        copy_bytes(memoryview(mapping)[offset - begin :], data)


def held_memory(mapping: Mapping) -> np.ndarray[Any, Any]:
    """The bytes of a mapping. It cannot be closed while they, or arrays made of them, are in use: a ctypes array holds
    the mapping's buffer, which numpy's arrays alone would not do in all versions."""
    memory: Any = (ctypes.c_uint8 * len(mapping)).from_buffer(mapping)
    return np.frombuffer(memory, dtype=np.uint8)


def end_of_loan(mapping: Mapping) -> None:
    """The pages' owner may use them for something else from now on. If something still refers to them - the model has
    kept an array, say - it gets copies first."""
    try:
        mapping.close()
    except BufferError:
        pages = np.frombuffer(mapping, dtype=np.uint8)[::PAGE_BYTES]
        np.bitwise_or(pages, 0, out=pages)  # a write copies a private page
