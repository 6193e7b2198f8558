"""Copies in the background of the thread that wants them: it and a native helper thread share them (`native/crew.cpp`).

What Python does for a copy, before and after, is about a fifth of the copy itself and cannot be done while the thread
copies. With a helper, copies go on meanwhile; and where cores are idle two threads copy at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections import deque
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_uint64, c_void_p

from slipstream.kv_transfer.row_copy import DONE, RowCopy, open_library, pack_copies, usable_variants

NUM_SLOTS = 64  # kSlots of crew.cpp: copies that are handed in and not taken back


class CrewLibrary:
    """The native functions of a build. Raises OSError if it is not there, AttributeError if it is older than these."""

    def __init__(self, variant: str) -> None:
        library = open_library(variant)
        self.open = _typed(library.slipstream_open_crew, c_void_p, c_int32, c_int32)
        arguments = (c_void_p, c_char_p, c_int64, c_int64, POINTER(c_int64), c_void_p, c_void_p)
        self.work = _typed(library.slipstream_crew_work, c_int64, *arguments)
        self.drop_all = _typed(library.slipstream_crew_drop_all, None, c_void_p)
        self.close = _typed(library.slipstream_close_crew, None, c_void_p)


@functools.cache
def native_crews() -> CrewLibrary | None:
    for variant in usable_variants():
        with contextlib.suppress(OSError, AttributeError):
            return CrewLibrary(variant)
    return None


class CopyCrew:
    """For one thread. `bell` is an eventfd that is written to when the helper has finished what the owner had left to
    wait for. Without a helper, or where no thread is to be had, the owner makes all copies itself. Raises MemoryError.

    The memory of the tables must stay until their copy was taken back or dropped.
    """

    def __init__(self, library: CrewLibrary, bell: int, *, has_helper: bool = True) -> None:
        self._library = library
        self._handle = library.open(bell, has_helper)
        if self._handle is None:
            raise MemoryError("no memory for a crew that copies pages")
        self._num_left = c_int64()
        self._jobs: deque[bytes] = deque()  # for each copy that is handed in: what the native side refers to
        self._checksums, self._outcomes = (c_uint64 * NUM_SLOTS)(), (c_int32 * NUM_SLOTS)()

    @property
    def num_left(self) -> int:
        """Copies that nobody had begun when `work` returned."""
        return self._num_left.value

    def work(self, copies: Sequence[RowCopy], max_own: int) -> list[int | None]:
        """Hands in `copies`, for which there must be room, makes at most `max_own` of those that wait, and takes back
        what is finished, in the order in which it was handed in: checksums, or None as `copy_rows`."""
        jobs = pack_copies(copies)
        num_done: int = self._library.work(
            self._handle, jobs, len(copies), max_own, byref(self._num_left), self._checksums, self._outcomes
        )
        assert num_done >= 0, "more copies than there is room for"
        self._jobs.extend([jobs] * len(copies))
        for _ in range(num_done):
            self._jobs.popleft()
        found = zip(self._checksums[:num_done], self._outcomes[:num_done], strict=True)
        return [checksum if outcome == DONE else None for checksum, outcome in found]

    def drop_all(self) -> None:
        """Returns when nobody copies any more; what was not taken back is forgotten, made or not."""
        self._library.drop_all(self._handle)
        self._jobs.clear()

    def close(self) -> None:
        self._library.close(self._handle)
        self._handle = None


def _typed(function: ctypes._NamedFuncPointer, result: object, *arguments: object) -> ctypes._NamedFuncPointer:
    function.restype = result  # type: ignore[assignment]
    function.argtypes = arguments  # type: ignore[assignment]
    return function
