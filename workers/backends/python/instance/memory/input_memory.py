"""Memory for inputs that lie in shared memory. They are copied: a model may write to its inputs and keep them, but the
memory they came in is used for other requests later."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from typing import Any

import numpy as np

from slipstream.workers.backends.python.instance.memory.shared_files import SharedFiles, copy_bytes

POOLED_BYTES = 1 << 20  # from this size on the system takes new memory from the kernel for each buffer, page by page
KEPT_BYTES = 256 << 20


class InputMemory:
    """Copies tensors into buffers, which come back when the last array that shows them is gone."""

    def __init__(self, files: SharedFiles) -> None:
        self._files = files
        self._free: deque[np.ndarray[Any, Any]] = deque()

    def copy_of(self, key: str, offset: int, num_bytes: int) -> Any:
        """The bytes of a place, as a buffer of their own. Raises OSError or ValueError."""
        source = self._files.bytes_at(key, offset, num_bytes)
        if num_bytes < POOLED_BYTES:
            return bytearray(source)
        whole: Any = self._take(num_bytes)
        lease: Any = (ctypes.c_uint8 * num_bytes).from_buffer(whole)  # held by all arrays that are made of it
        weakref.finalize(lease, self._give_back, whole).atexit = False
        copy = np.frombuffer(lease, dtype=np.uint8)
        copy_bytes(copy, source)
        return copy

    def _take(self, num_bytes: int) -> np.ndarray[Any, Any]:
        for _ in range(len(self._free)):
            try:
                buffer = self._free.popleft()
            except IndexError:
                break
            if num_bytes <= buffer.nbytes <= 2 * num_bytes:
                return buffer
            self._free.append(buffer)
        return np.empty(num_bytes, dtype=np.uint8)

    def _give_back(self, buffer: np.ndarray[Any, Any]) -> None:
        """Runs where the last array ends, on any thread."""
        self._free.append(buffer)
        while sum(kept.nbytes for kept in list(self._free)) > KEPT_BYTES:
            try:
                self._free.popleft()
            except IndexError:
                return
