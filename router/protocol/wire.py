"""The frames between router and workers.

    | u32 little-endian: payload length | MessagePack array [type code, field, field, ...] |

For any bytes, decoding either yields a message or raises `WireError`. A connection that sent bad bytes is closed; the
others never notice. A kind of message that only a newer peer has is left out, after one warning, once the peer is
trusted. So a kind that must be answered may only be sent to peers whose protocol version has it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, cast

import msgpack

from slipstream.router.protocol import messages
from slipstream.router.protocol.codec import Decoder, Encoder, WireError, decoder, encoder
from slipstream.router.protocol.messages import RouterMessage, WorkerMessage

__all__ = [
    "MAX_FRAME_BYTES",
    "MAX_OUTGOING_BYTES",
    "FrameEncoder",
    "FrameProtocol",
    "FrameReader",
    "Message",
    "UnknownKindError",
    "Vocabulary",
    "WireError",
    "decode_payload",
    "encode_frame",
]

Message = WorkerMessage | RouterMessage

MAX_FRAME_BYTES = 64 << 20
# How much may be queued for a peer that does not read. A peer further behind than this counts as lost.
MAX_OUTGOING_BYTES = 64 << 20

MAX_SKIPPED_KINDS = 64  # that are warned of, per connection
LENGTH = struct.Struct("<I")  # the payload's length, in front of it

log = logging.getLogger(__name__)

# Codes are part of the protocol: never reuse one (`messages.PROTOCOL_VERSION` says how messages may change).
TYPE_CODES: dict[type, int] = {
    messages.Hello: 1,
    messages.Credits: 2,
    messages.Reserved: 3,
    messages.StepOutput: 4,
    messages.HandedOff: 5,
    messages.Failed: 6,
    messages.Stats: 7,
    messages.Pong: 8,
    messages.BlocksChanged: 9,
    messages.StepTimes: 10,
    messages.Copied: 11,
    messages.Frozen: 12,
    messages.PagesHeld: 13,
    messages.PromptScores: 14,
    messages.AttemptWork: 15,
    messages.Welcome: 32,
    messages.Rejected: 33,
    messages.Generate: 34,
    messages.Reserve: 35,
    messages.Prefill: 36,
    messages.Start: 37,
    messages.Cancel: 38,
    messages.PeerLost: 39,
    messages.Ping: 40,
    messages.Drain: 41,
    messages.ResyncBlocks: 42,
    messages.Adopt: 43,
    messages.Extend: 44,
    messages.Migrate: 45,
    messages.Resume: 46,
    messages.Postponed: 47,
    messages.PageLimit: 48,
    messages.ServiceLevel: 49,
    messages.Retain: 50,
    messages.TraceAttempt: 51,
}


class UnknownKindError(WireError):
    """A frame of a kind that this version does not have."""

    def __init__(self, code: int) -> None:
        super().__init__(f"unknown message type {code!r:.40}")
        self.code = code


class Vocabulary:
    """The messages of one kind of connection. Their codecs are compiled when they are first needed."""

    def __init__(self, type_codes: dict[type, int]) -> None:
        self._type_codes = type_codes

    @cached_property
    def encoders(self) -> dict[type, tuple[int, Encoder]]:
        return {cls: (code, encoder(cls)) for cls, code in self._type_codes.items()}

    @cached_property
    def decoders(self) -> dict[int, Decoder]:
        return {code: decoder(cls) for cls, code in self._type_codes.items()}


WORKERS = Vocabulary(TYPE_CODES)


class FrameEncoder:
    """Turns messages into frames. It reuses its packing buffer, so use one per connection, from one thread."""

    def __init__(self, vocabulary: Vocabulary = WORKERS) -> None:
        self._encoders = vocabulary.encoders
        self._packer = msgpack.Packer()

    def encode(self, message: Any) -> bytes:
        """The whole frame. Raises WireError for values that cannot be encoded (an int beyond 64 bits, broken text)."""
        code, flatten = self._encoders[type(message)]
        try:
            payload: bytes = self._packer.pack((code, *flatten(message)))
        except (OverflowError, ValueError, TypeError) as error:
            raise WireError(f"{type(message).__name__} cannot be sent: {error}") from error
        if len(payload) > MAX_FRAME_BYTES:
            raise WireError(f"{type(message).__name__} of {len(payload)} bytes exceeds {MAX_FRAME_BYTES}")
        return len(payload).to_bytes(4, "little") + payload


def encode_frame(message: Message) -> bytes:
    """One frame, for callers without a connection. Raises WireError like `FrameEncoder.encode`."""
    return FrameEncoder().encode(message)


def decode_payload(payload: bytes | bytearray | memoryview, vocabulary: Vocabulary = WORKERS) -> Any:
    """The message in a frame's payload (the frame without its length). Raises WireError for any others."""
    try:
        fields = msgpack.unpackb(payload, use_list=False)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"not MessagePack: {type(error).__name__} {error}") from error
    if type(fields) is not tuple or not fields:
        raise WireError(f"a frame must be an array of a type code and fields, got {type(fields).__name__}")
    code = fields[0]
    if type(code) is not int:
        raise WireError(f"unknown message type {code!r:.40}")
    decode = vocabulary.decoders.get(code)
    if decode is None:
        raise UnknownKindError(code)
    return decode(fields[1:])


class FrameReader:
    """Splits a byte stream into messages, without I/O."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, vocabulary: Vocabulary = WORKERS) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._skips_unknown = False
        self._skipped: set[int] = set()
        self._vocabulary = vocabulary
        self._rest = bytearray()

    def trust(self) -> None:
        """The peer is one of ours: from now on it may send frames of any size, and messages of kinds that this version
        does not have, which are left out."""
        self._max_frame_bytes = MAX_FRAME_BYTES
        self._skips_unknown = True

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that `data` completes, in order. Raises WireError at the first bad one, after the good ones
        before it.

        The iterator must be exhausted or dropped before the next call.
        """
        is_continued = bool(self._rest)
        if is_continued:
            self._rest += data
        position = 0
        with memoryview(self._rest if is_continued else data) as view:
            while len(view) - position >= 4:
                (size,) = LENGTH.unpack_from(view, position)
                if size > self._max_frame_bytes:
                    raise WireError(f"a frame of {size} bytes exceeds {self._max_frame_bytes}")
                end = position + 4 + size
                if end > len(view):
                    break
                begin, position = position + 4, end
                try:
                    message = decode_payload(view[begin:end], self._vocabulary)
                except UnknownKindError as error:
                    if not self._skips_unknown:
                        raise
                    self._skip(error.code)
                    continue
                yield message
        if is_continued:
            del self._rest[:position]
        else:
            self._rest += data[position:]

    def _skip(self, code: int) -> None:
        if code not in self._skipped and len(self._skipped) < MAX_SKIPPED_KINDS:
            self._skipped.add(code)
            log.warning("leaving out messages of type %d, which a newer peer has and this version does not", code)


class FrameProtocol(asyncio.Protocol):
    """Either end of a connection between router and worker, or of another kind with a `vocabulary` of its own.

    `on_message` gets every message in order. `on_open` is called once the connection stands, `on_lost` exactly once
    when it is over, with the reason: a WireError when the peer sent bad bytes, BufferError when it did not read,
    another exception from the socket, or None after an ordinary close. After `close` no message is delivered.

    What is sent during one turn of the event loop leaves in one write: a step's output and the credits after it, or the
    requests that became due together. A separate write for each would cost more than everything else about them.
    """

    def __init__(
        self,
        on_message: Callable[[Any], None],
        on_lost: Callable[[Exception | None], None],
        on_open: Callable[[], None] | None = None,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_outgoing_bytes: int = MAX_OUTGOING_BYTES,
        vocabulary: Vocabulary = WORKERS,
    ) -> None:
        self.reader = FrameReader(max_frame_bytes, vocabulary)
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_open = on_open
        self._max_outgoing_bytes = max_outgoing_bytes
        self._encoder = FrameEncoder(vocabulary)
        self._loop: asyncio.AbstractEventLoop  # once there is a transport
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._closing = False
        self._reason: Exception | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._closing

    @property
    def peer_address(self) -> str:
        """The address of the other end, for logs."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{peer[0]}:{peer[1]}" if peer else "nowhere"

    def send(self, message: Any) -> None:
        """Queues a message; does nothing on a connection that is closing. Raises WireError for unsendable values."""
        if self._transport is None or self._closing:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._queue(message)

    def send_batch(self, messages: Iterable[Any]) -> None:
        """Sends several messages at once, together with what was queued before, without waiting for the end of the
        turn."""
        if self._transport is not None and not self._closing:
            for message in messages:
                self._queue(message)
            self._flush()

    def _queue(self, message: Any) -> None:
        frame = self._encoder.encode(message)
        self._outgoing.append(frame)
        self._outgoing_bytes += len(frame)
        if self._outgoing_bytes > self._max_outgoing_bytes:
            self._give_up(self._outgoing_bytes)

    def _flush(self) -> None:
        if not self._outgoing or self._closing or self._transport is None:
            return
        waiting = self._outgoing_bytes + self._transport.get_write_buffer_size()
        if waiting > self._max_outgoing_bytes:
            self._give_up(waiting)
            return
        self._transport.write(b"".join(self._outgoing))
        self._outgoing = []
        self._outgoing_bytes = 0

    def _give_up(self, num_waiting_bytes: int) -> None:
        self.abort(BufferError(f"the peer left {num_waiting_bytes} bytes unread"))

    def close(self) -> None:
        """Sends the queued frames, then closes."""
        self._flush()
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: Exception | None = None) -> None:
        """Closes at once and drops the queued frames."""
        self._outgoing = []
        self._closing = True
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from it
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._closing:
            self._transport.abort()
        elif self._on_open is not None:
            self._on_open()

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return
        try:
            for message in self.reader.feed(data):
                self._on_message(message)
                if self._closing:
                    return
        except WireError as error:
            self.abort(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._outgoing = []
        self._closing = True
        on_lost, reason = self._on_lost, self._reason or exc
        # These callbacks hold our owner, and the traceback of our reason holds us. Without such cycles a connection is
        # freed at once, with its buffers: the garbage collector runs once in thousands of connections.
        self._on_message = self._on_lost = _ignore
        self._on_open = self._reason = None
        on_lost(reason)


def _ignore(_: Any) -> None:
    """For a lost connection, which has no listener."""
