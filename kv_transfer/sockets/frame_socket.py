"""Non-blocking TCP connections that carry frames: a 16-bit length, followed by as many bytes."""

from __future__ import annotations

import contextlib
import socket
import struct

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.sockets.spare_file import SpareFile

_LENGTH = struct.Struct("<H")
_READ_BYTES = 64 << 10
_BACKLOG = 128


class FrameSocket:
    """One connection. The kernel ends it when the other *host* has been silent for `silence_s`. A process there that is
    stopped does not matter, because its kernel answers."""

    def __init__(self, connection: socket.socket, silence_s: float) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # In whole seconds. The user timeout applies to data on its way, and also ends an idle connection.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_s / 2)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, int(silence_s / 2)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * silence_s))
        self._connection = connection
        self._incoming = bytearray()
        self._outgoing = bytearray()

    @classmethod
    def connect(cls, address: TransferAddress, silence_s: float) -> FrameSocket:
        """Returns before the connection is made; failure shows when it is read. Raises OSError for a bad address."""
        if not 0 < address.port < 1 << 16:
            raise OSError(f"{address.port} is no port")
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except UnicodeError as error:  # a label of the host name is empty or too long
            raise OSError(f"{address.host!r} is no host: {error}") from error
        family, kind, protocol, _, target = found[0]
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(target)
            return cls(connection, silence_s)
        except OSError:
            connection.close()
            raise

    @property
    def is_within_host(self) -> bool:
        """Whether both ends have the same address. To be called once the connection is made."""
        try:
            return bool(self._connection.getpeername()[0] == self._connection.getsockname()[0])
        except OSError:
            return False

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, frame: bytes) -> None:
        """Queue a frame of less than 64 KiB; `flush` writes it as soon as the connection accepts it."""
        self._outgoing += _LENGTH.pack(len(frame)) + frame

    def flush(self) -> None:
        """Raises OSError if the connection is broken or was refused."""
        if self._outgoing:
            with contextlib.suppress(BlockingIOError):
                del self._outgoing[: self._connection.send(self._outgoing)]

    def receive(self) -> list[bytes] | None:
        """The frames that are complete, or None at the end of the stream. Raises OSError like `flush`."""
        try:
            read = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        if not read:
            return None
        self._incoming += read
        frames = []
        while len(self._incoming) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._incoming)
            if len(self._incoming) < _LENGTH.size + size:
                break
            frames.append(bytes(self._incoming[_LENGTH.size : _LENGTH.size + size]))
            del self._incoming[: _LENGTH.size + size]
        return frames

    def close(self) -> None:
        self._connection.close()


class FrameListener:
    """Accepts connections on a free port of `host`. Raises OSError if the address does not belong to this machine."""

    def __init__(self, host: str, silence_s: float) -> None:
        self._silence_s = silence_s
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._spare = SpareFile()
        self.address = TransferAddress(host, int(self._listener.getsockname()[1]))

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> FrameSocket | None:
        """The next waiting connection, if any."""
        connection = self._spare.accept(self._listener)
        return None if connection is None else FrameSocket(connection, self._silence_s)

    def close(self) -> None:
        self._listener.close()
        self._spare.close()
