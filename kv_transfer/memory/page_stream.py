"""Pages in the form of a message that the wire packs and unpacks piece by piece, so that they need no staging.

    pages of one layer | checksum, 8 bytes

The bytes are those of `StagedMover`, so one end may stage and the other not. `native/page_stream.cpp` does the
work, called by UCX for each of its buffers; there is no form of it in Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from ctypes import c_char_p, c_int32, c_uint64, c_void_p

from slipstream.kv_transfer.api.page_transport import CHECKSUM_BYTES, MessagePages
from slipstream.kv_transfer.memory.host_pages import HostPages
from slipstream.kv_transfer.memory.row_copy import RowCopy, open_library, pack_copies, usable_variants


class StreamLibrary:
    """The native functions of a build. Raises OSError if it is missing, AttributeError if it is too old to have
    them."""

    def __init__(self, variant: str) -> None:
        library = open_library(variant)
        self.open = _typed(library.slipstream_begin_stream, c_void_p, c_char_p, c_uint64)
        self.is_whole = _typed(library.slipstream_stream_is_whole, c_int32, c_void_p)
        self.close = _typed(library.slipstream_close_stream, None, c_void_p)
        operations = _typed(library.slipstream_stream_operations, c_void_p)
        self.operations: int = operations()  # the address of UCX's ucp_generic_dt_ops


@functools.cache
def native_streams() -> StreamLibrary | None:
    for variant in usable_variants():
        with contextlib.suppress(OSError, AttributeError):
            return StreamLibrary(variant)
    return None


class PageStream:
    """`pages` of `pool`, to be sent or to be received, once. They must be at least MIN_BYTES in all.

    With `spoil`, a wrong checksum is sent. It must be closed when no wire uses it any more.
    """

    def __init__(self, library: StreamLibrary, pool: HostPages, pages: MessagePages, spoil: bool = False) -> None:
        self._library = library
        table, ids = pool.rows(pages.layer, pages.num_layers, pages.page_ids, pages.heads)
        job = RowCopy(None, None, table, ids, len(ids), pages.seed, past_caches=True)
        self._job, self._table = pack_copies([job]), table  # kept alive, because the native side refers to their memory
        self._num_bytes = len(ids) * table.row_bytes + CHECKSUM_BYTES
        self.handle: int | None = library.open(self._job, 0x10 if spoil else 0)
        assert self.handle is not None, "a rank's own page ids are checked where they come in"

    def __len__(self) -> int:
        """The number of bytes of the message."""
        return self._num_bytes

    def is_whole(self) -> bool:
        """Whether all of it has been received and its checksum is right."""
        return bool(self._library.is_whole(self.handle))

    def close(self) -> None:
        self._library.close(self.handle)
        self.handle = None


def _typed(function: ctypes._NamedFuncPointer, result: object, *arguments: type) -> ctypes._NamedFuncPointer:
    function.restype = result  # type: ignore[assignment]
    function.argtypes = arguments
    return function
