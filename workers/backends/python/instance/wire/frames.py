"""Frames of the instance protocol: bytes in, messages out, and the other way round."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

PREFIX = struct.Struct("<IQ")  # bytes of the head, bytes of the payload
BUFFER_BYTES = 256 * 1024
MAX_HEAD_BYTES = 2**31
ALIGNMENT = 8
MAX_PIECES = 500  # of one call; the kernel takes 1024

decode_head = json.JSONDecoder().raw_decode
encode_head = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class ConnectionLostError(Exception):
    """The router is gone, or what it sent is no frame."""


class FrameMessage:
    """A frame. `payload` may be written to, and lives as long as anything refers to it."""

    __slots__ = ("head", "payload", "type")

    def __init__(self, head: dict[str, Any], payload: bytearray) -> None:
        self.head = head
        self.type: str = head["type"]
        self.payload = payload


class RouterFrameReader:
    """Reads frames from a socket. What has arrived beyond the frame that is asked for stays in the buffer."""

    __slots__ = ("_buffer", "_end", "_large", "_num_large", "_socket", "_start", "_view")

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None  # a frame without its prefix that is larger than the buffer
        self._num_large = 0  # bytes of it that are here

    def read(self, flags: int = 0) -> FrameMessage | None:
        """The next frame. With MSG_DONTWAIT: None if it has not arrived completely. Raises ConnectionLostError."""
        while True:
            message = self._next_message()
            if message is not None:
                return message
            if not self._receive(flags):
                return None

    def _next_message(self) -> FrameMessage | None:
        if self._large is not None:
            return self._finish_large()
        num_bytes = self._end - self._start
        if num_bytes < PREFIX.size:
            return None
        head_bytes, payload_bytes = PREFIX.unpack_from(self._buffer, self._start)
        if head_bytes > MAX_HEAD_BYTES:
            raise ConnectionLostError(f"a frame with {head_bytes} bytes of head")
        size = PREFIX.size + head_bytes + payload_bytes
        if num_bytes < size:
            if size > BUFFER_BYTES:
                self._begin_large(head_bytes + payload_bytes)
            return None
        begin = self._start + PREFIX.size
        middle = begin + head_bytes
        end = middle + payload_bytes
        head = self._view[begin:middle]
        payload = bytearray(self._view[middle:end])
        self._start = end
        if end == self._end:
            self._start = self._end = 0
        return parse(head, payload)

    def _receive(self, flags: int) -> bool:
        """Takes in more bytes; whether there were any."""
        if self._large is not None:
            target = memoryview(self._large)[self._num_large :]
        elif not self._end:
            target = self._view
        else:
            if self._start and self._end == BUFFER_BYTES:
                self._move_to_front()
            target = self._view[self._end :]
        try:
            num_bytes = self._socket.recv_into(target, 0, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionLostError(str(error)) from error
        if not num_bytes:
            raise ConnectionLostError("the router closed the connection")
        if self._large is not None:
            self._num_large += num_bytes
        else:
            self._end += num_bytes
        return True

    def _begin_large(self, num_bytes: int) -> None:
        begin = self._start + PREFIX.size
        here = self._view[begin : self._end]
        self._large = bytearray(PREFIX.size + num_bytes)
        self._large[: PREFIX.size] = self._view[self._start : begin]
        self._large[PREFIX.size : PREFIX.size + len(here)] = here
        self._num_large = PREFIX.size + len(here)
        self._start = self._end = 0

    def _finish_large(self) -> FrameMessage | None:
        frame = self._large
        assert frame is not None
        if self._num_large < len(frame):
            return None
        self._large = None
        head_bytes, _ = PREFIX.unpack_from(frame)
        middle = PREFIX.size + head_bytes
        return parse(memoryview(frame)[PREFIX.size : middle], frame[middle:])

    def _move_to_front(self) -> None:
        num_bytes = self._end - self._start
        self._buffer[:num_bytes] = self._buffer[self._start : self._end]
        self._start, self._end = 0, num_bytes


def parse(head: memoryview, payload: bytearray) -> FrameMessage:
    try:
        fields, _ = decode_head(str(head, "utf-8"))
        return FrameMessage(fields, payload)
    except (ValueError, KeyError, TypeError) as error:
        raise ConnectionLostError(f"a head that is no message: {error}") from error


def frame_parts(head: str, payload: list[Any], payload_bytes: int) -> tuple[list[Any], int]:
    """The pieces of a frame, to be sent in one call, and their bytes. Text that is no Unicode (the name of a file in
    the message of an exception, say) is sent with question marks."""
    encoded = head.encode("utf-8", "replace")
    if len(payload) > MAX_PIECES:
        payload = [b"".join(payload)]
    first = PREFIX.pack(len(encoded), payload_bytes) + encoded
    return [first, *payload], len(first) + payload_bytes
