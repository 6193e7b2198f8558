"""Non-blocking Unix sockets that carry packets, between processes of one user on one host."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence

from slipstream.kv_transfer.sockets.spare_file import SpareFile

PACKET_BYTES = 128 << 10  # the longest packet
_BACKLOG = 128
_CREDENTIALS = struct.Struct("iii")  # pid, uid, gid


class PacketSocket:
    """One connection. Raises PermissionError for a peer of another user."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(packed)
        if user != os.geteuid():
            raise PermissionError(f"the peer belongs to user {user}")
        self._connection = connection
        self._outgoing: deque[bytes] = deque()
        self._buffer = bytearray(PACKET_BYTES)

    @classmethod
    def connect(cls, name: str) -> PacketSocket:
        """Raises OSError, at once, if there is no listener."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            connection.connect("\0" + name)
            return cls(connection)
        except OSError:
            connection.close()
            raise

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, packet: bytes, files: Sequence[int] = ()) -> None:
        """Send a packet, or queue it for `flush` if the peer does not keep up. A failure shows when the socket is read.
        Descriptors (`files`) can only be sent with the first packet."""
        assert len(packet) <= PACKET_BYTES
        if not self._outgoing:
            with contextlib.suppress(OSError):
                if files:
                    socket.send_fds(self._connection, [packet], files)
                else:
                    self._connection.send(packet)
                return
        self._outgoing.append(packet)

    def flush(self) -> None:
        """Raises OSError if the connection is broken."""
        with contextlib.suppress(BlockingIOError):
            while self._outgoing:
                self._connection.send(self._outgoing[0])
                self._outgoing.popleft()

    def receive(self) -> bytes:
        """The next packet, empty at the end of the stream. Raises BlockingIOError if there is none yet, OSError."""
        size = self._connection.recv_into(self._buffer, 0, socket.MSG_TRUNC)
        if size > PACKET_BYTES:
            raise OSError(f"a packet of {size} bytes")
        return bytes(memoryview(self._buffer)[:size])

    def receive_with_files(self) -> tuple[bytes, list[int]]:
        """The next packet and up to two file descriptors that came with it, which the caller has to close."""
        packet, files, _, _ = socket.recv_fds(self._connection, PACKET_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        return packet, files

    def close(self) -> None:
        self._connection.close()


class PacketListener:
    """Accepts connections under an abstract name, which is not in the file system: it disappears with the process, and
    is visible only in its network namespace. Raises OSError if the name is taken."""

    def __init__(self, name: str) -> None:
        self._spare = SpareFile()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._listener.bind("\0" + name)
            self._listener.listen(_BACKLOG)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> PacketSocket | None:
        """The next waiting connection, if any."""
        while (connection := self._spare.accept(self._listener)) is not None:
            try:
                return PacketSocket(connection)
            except OSError:
                connection.close()
        return None

    def close(self) -> None:
        self._listener.close()
        self._spare.close()
