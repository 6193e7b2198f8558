"""Frames of the instance protocol, without I/O: their bytes, and what takes them apart again.

<u32 head_bytes> <u64 payload_bytes>  head (JSON)  payload
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import orjson

PREFIX = struct.Struct("<IQ")
PREFIX_BYTES = PREFIX.size
BUFFER_BYTES = 128 << 10  # holds a frame with an inline tensor; larger ones get a buffer of their own
MAX_HEAD_BYTES = 1 << 31

Json = dict[str, Any]
Payload = bytes | memoryview
Frame = tuple[Json, Payload]


class FrameError(ValueError):
    """The other side does not speak this protocol."""


def frame_start(head: Json, payload_bytes: int = 0) -> bytes:
    """A frame without its payload."""
    text = orjson.dumps(head)
    return PREFIX.pack(len(text), payload_bytes) + text


class InstanceFrameReader:
    """Takes frames out of a stream of bytes: `buffer` is where the next bytes go, `frames` follows.

    Small frames share one buffer, and their payloads are copied out of it. A frame that does not fit is received into
    memory of its own, which its payload then is: it is not copied. `max_frame_bytes` may be changed at any time.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._common = bytearray(BUFFER_BYTES)
        self._buffer = memoryview(self._common)
        self._is_own = False  # the buffer is that of one large frame
        self._start = 0
        self._end = 0

    def buffer(self) -> memoryview:
        return self._buffer[self._end :]

    def frames(self, num_bytes: int) -> Iterator[Frame]:
        """The frames that are complete now that `num_bytes` more are in the buffer. Raises FrameError."""
        self._end += num_bytes
        if self._is_own:
            if self._end == len(self._buffer):
                frame, self._buffer = self._buffer, memoryview(self._common)
                self._is_own, self._start, self._end = False, 0, 0
                yield self._large_frame(frame)
            return
        while self._end - self._start >= PREFIX_BYTES:
            head_bytes, payload_bytes = PREFIX.unpack_from(self._buffer, self._start)
            frame_bytes = PREFIX_BYTES + head_bytes + payload_bytes
            if frame_bytes > self.max_frame_bytes or head_bytes > MAX_HEAD_BYTES:
                raise FrameError(f"a frame of {head_bytes} + {payload_bytes} bytes is too large")
            if frame_bytes > BUFFER_BYTES:
                self._begin_large(frame_bytes)
                return
            if self._end - self._start < frame_bytes:
                break
            head_end = self._start + PREFIX_BYTES + head_bytes
            head = self._buffer[self._start + PREFIX_BYTES : head_end]
            payload = bytes(self._buffer[head_end : head_end + payload_bytes]) if payload_bytes else b""
            self._start += frame_bytes
            yield parsed_head(head), payload
        self._move_to_front()

    def _large_frame(self, frame: memoryview) -> Frame:
        head_end = PREFIX_BYTES + PREFIX.unpack_from(frame)[0]
        return parsed_head(frame[PREFIX_BYTES:head_end]), frame[head_end:]

    def _begin_large(self, frame_bytes: int) -> None:
        received = self._buffer[self._start : self._end]
        if len(received) > frame_bytes:
            raise AssertionError("a frame larger than the buffer is in the buffer")
        self._buffer = memoryview(bytearray(frame_bytes))
        self._buffer[: len(received)] = received
        self._is_own, self._start, self._end = True, 0, len(received)

    def _move_to_front(self) -> None:
        rest = self._end - self._start
        if rest and self._start:
            self._common[:rest] = self._common[self._start : self._end]
        self._start, self._end = 0, rest


def parsed_head(text: memoryview) -> Json:
    """Numbers may be NaN or infinite, as Python writes them. Raises FrameError."""
    try:
        head = orjson.loads(text)
    except orjson.JSONDecodeError:
        head = _parsed_slowly(text)
    if not isinstance(head, dict) or not isinstance(head.get("type"), str):
        raise FrameError("a head is no object with a type")
    return head


def _parsed_slowly(text: memoryview) -> Any:
    """What `orjson` does not read: NaN and Infinity; and escaped lone surrogates, which become question marks, because
    no answer could be written with them. Raises FrameError."""
    try:
        head = json.loads(str(text, "utf-8"))
        return json.loads(json.dumps(head, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a head is no JSON: {error}") from error
