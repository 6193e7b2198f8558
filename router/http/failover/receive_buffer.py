"""Where bytes of clients arrive: memory that outlives this process, so that what was read and not noted yet is there
for the next router.

One piece serves all connections of an event loop, because what a read has brought is noted before the next one begins.
The kernel knows how many bytes a connection's process has read (`socket_bytes`), and its journal how many of them were
noted, so the difference says how much of what lies here belongs to it.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

from slipstream.router.http.observer import READ_BUFFER_BYTES

NUMBER = struct.Struct("<Q")  # of the connection whose bytes these are
HEADER_BYTES = 64
FILE_BYTES = HEADER_BYTES + READ_BUFFER_BYTES
NOT_HELD = 0  # number of a connection that the holder does not have


@dataclass(frozen=True, slots=True)
class FilledBuffer:
    """What the previous router has read last."""

    number: int
    data: bytes  # longer than what was read

    def of(self, number: int, num_bytes: int) -> bytes | None:
        """What that connection has read and not noted, so many bytes; None: it does not lie here."""
        is_here = number == self.number and 0 <= num_bytes <= len(self.data)
        return self.data[:num_bytes] if is_here else None


NOTHING_READ = FilledBuffer(NOT_HELD, b"")


class ReceiveBuffer:
    """The memory into which all connections of one event loop read."""

    def __init__(self, fd: int = -1) -> None:
        """In an open memory file, which remains the caller's; without one the memory is this process's own. Raises
        OSError, and ValueError if the file is too short."""
        self._memory = mmap.mmap(fd, FILE_BYTES)
        self._data = memoryview(self._memory)[HEADER_BYTES:]

    def room_for(self, number: int) -> memoryview:
        """Takes the next read, which is that connection's."""
        NUMBER.pack_into(self._memory, 0, number)
        return self._data

    @property
    def last_read(self) -> FilledBuffer:
        """A copy of what was read last, and the connection that it belongs to."""
        (number,) = NUMBER.unpack_from(self._memory)
        return FilledBuffer(number, self._data.tobytes())


def create_buffer_file() -> int:
    """An empty memory file for a `ReceiveBuffer`. Raises OSError."""
    fd = os.memfd_create("slipstream-landing", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, FILE_BYTES)
    except OSError:
        os.close(fd)
        raise
    return fd
