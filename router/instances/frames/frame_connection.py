"""A connection that carries frames."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

from slipstream.router.instances.frames.frame_reader import (
    Frame,
    FrameError,
    InstanceFrameReader,
    Json,
    Payload,
    frame_start,
)

JOINED_BYTES = 64 << 10  # parts up to this size, which all inline tensors have, are copied together into one write
KEEP_ALIVE_S = (5, 2, 3)  # idle, between probes, number of probes: a machine that vanishes is noticed after 11 s

log = logging.getLogger(__name__)


class FrameReceiver(Protocol):
    """What a connection's frames go to. It may raise FrameError, which ends the connection."""

    def received(self, head: Json, payload: Payload) -> None: ...

    def lost(self, reason: str) -> None:
        """The connection is gone; comes once."""


class NoReceiver:
    """The receiver of a connection that its owner has left."""

    def received(self, head: Json, payload: Payload) -> None: ...

    def lost(self, reason: str) -> None: ...


class FrameConnection(asyncio.BufferedProtocol):
    """`receiver` may be replaced at any time. A connection ends by `close`, by the other side, or at a frame that is
    wrong. It is `among` the others of its owner as long as it is open."""

    def __init__(
        self,
        receiver_of: Callable[[FrameConnection], FrameReceiver],
        max_frame_bytes: int,
        among: set[FrameConnection] | None = None,
    ) -> None:
        self._reader = InstanceFrameReader(max_frame_bytes)
        self._among: set[FrameConnection] = set() if among is None else among
        self._transport: asyncio.Transport | None = None
        self._reason = "the connection was closed by the other side"
        self.receiver = receiver_of(self)

    def allow_frames_of(self, max_frame_bytes: int) -> None:
        self._reader.max_frame_bytes = max_frame_bytes

    @property
    def local_address(self) -> str:
        """`HOST:PORT` of this end, or "" of a Unix socket."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        if not isinstance(name, tuple):
            return ""
        host, port = str(name[0]).removeprefix("::ffff:"), int(name[1])
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def send(self, head: Json, parts: Sequence[Payload] = (), payload_bytes: int = 0) -> None:
        """`parts` are the payload, of `payload_bytes` in all; large ones must not change before they are sent. Does
        nothing once the connection is lost."""
        transport = self._transport
        if transport is None:
            return
        start = frame_start(head, payload_bytes)
        if not parts:
            transport.write(start)
        elif payload_bytes <= JOINED_BYTES:
            transport.write(b"".join((start, *parts)))
        else:
            transport.write(start)
            for part in parts:
                transport.write(part)

    def close(self, reason: str = "the connection was closed") -> None:
        """Sends what is queued, and ends the connection. Idempotent."""
        if self._transport is not None:
            self._reason = reason
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._reason = reason
            self._transport.abort()

    def leave(self, reason: str) -> None:
        """As `close`; the receiver hears nothing any more."""
        self.receiver = NoReceiver()
        self.close(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from it
        self._among.add(self)
        keep_alive(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.deliver(self._reader.frames(nbytes))

    def deliver(self, frames: Iterable[Frame]) -> None:
        """Gives frames to the receiver: these have arrived, now or earlier."""
        try:
            for head, payload in frames:
                self.receiver.received(head, payload)
        except FrameError as error:
            self.abort(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._among.discard(self)
        self.receiver.lost(str(exc) if exc is not None else self._reason)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Makes TCP notice when the machine at the other end has vanished without a word."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family == socket.AF_UNIX:
        return
    idle_s, interval_s, num_probes = KEEP_ALIVE_S
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, num_probes)
        timeout_ms = 1000 * (idle_s + num_probes * interval_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
