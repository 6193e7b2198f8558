"""The control link between rank 0 and another rank: typed MessagePack frames over one blocking TCP socket.

It is blocking because both ends have a thread with nothing else to do: a rank that waits for its next step reads the
plan straight off the socket, with no event loop or queue between the wire and the step.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from functools import cache
from typing import Any

import msgpack

from slipstream.router.protocol.codec import Decoder, Encoder, WireError, decoder, encoder
from slipstream.router.protocol.messages import RankUsage
from slipstream.workers.group import group_messages as messages
from slipstream.workers.group.group_messages import GroupMessage
from slipstream.workers.process.keep_alive import keep_alive
from slipstream.workers.transfers.group_transfers import RankOutcome

MAX_FRAME_BYTES = 64 << 20

TYPE_CODES: dict[type, int] = {
    messages.Join: 1,
    messages.RankReady: 2,
    messages.RankFailed: 3,
    RankOutcome: 4,
    RankUsage: 5,
    messages.Execute: 32,
    messages.Expect: 33,
    messages.CancelTransfer: 34,
    messages.ForgetPeer: 35,
    messages.BeginEpoch: 36,
    messages.Shutdown: 37,
    messages.SendPages: 38,
    messages.ServeAs: 39,
    messages.ReturnPages: 40,
}


@cache
def _encoders() -> dict[type, tuple[int, Encoder]]:
    return {cls: (code, encoder(cls)) for cls, code in TYPE_CODES.items()}


@cache
def _decoders() -> dict[int, Decoder]:
    return {code: decoder(cls) for cls, code in TYPE_CODES.items()}


class LinkClosed(ConnectionError):  # noqa: N818 - names the condition
    """The other end has closed the link or has died."""


class ControlLink:
    """One end of a link. `send` may be called from several threads, `receive` from one."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        self._socket = connection
        self._reader = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: GroupMessage) -> None:
        """Sends a message; blocks while the other end does not read. Raises LinkClosed."""
        code, flatten = _encoders()[type(message)]
        payload: bytes = msgpack.packb((code, *flatten(message)))
        try:
            with self._sending:
                self._socket.sendall(len(payload).to_bytes(4, "little") + payload)
        except OSError as error:
            raise LinkClosed(f"control link: {error}") from error

    def send_last(self, message: GroupMessage) -> None:
        """Sends a last message and the end of the stream; the other end may still answer. Never raises."""
        with contextlib.suppress(LinkClosed, OSError):  # the other end was faster
            self.send(message)
            self._socket.shutdown(socket.SHUT_WR)

    def receive(self) -> GroupMessage:
        """Waits for the next message. Raises LinkClosed at the end, and WireError for bytes that are not a message."""
        size = int.from_bytes(self._read(4), "little")
        if size > MAX_FRAME_BYTES:
            raise WireError(f"a frame of {size} bytes exceeds {MAX_FRAME_BYTES}")
        return _decode(self._read(size))

    def wait_for_hangup(self) -> None:
        """Returns when the other end has closed the link or `close` was called here; reads nothing."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP | select.POLLHUP)
        poll.poll()

    def close(self) -> None:
        """Closes the link and wakes up threads that wait in `receive` or `wait_for_hangup`."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int) -> bytes:
        try:
            data = self._reader.read(size)
        except OSError as error:
            raise LinkClosed(f"control link: {error}") from error
        if len(data) < size:
            raise LinkClosed("control link: closed by the other end")
        return data


def _decode(payload: bytes) -> GroupMessage:
    try:
        fields: Any = msgpack.unpackb(payload, use_list=False)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"not MessagePack: {type(error).__name__} {error}") from error
    code = fields[0] if type(fields) is tuple and fields else None
    decode = _decoders().get(code) if type(code) is int else None
    if decode is None:
        raise WireError(f"no message of a group: {payload[:40]!r}")
    message: GroupMessage = decode(fields[1:])
    return message
