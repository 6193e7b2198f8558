"""Frames come out as they went in, however the bytes are cut; what is no frame is an error."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.instances.frames.frame_reader import (
    BUFFER_BYTES,
    PREFIX,
    FrameError,
    InstanceFrameReader,
    Json,
    frame_start,
)

MAX_BYTES = 4 * BUFFER_BYTES


def read(reader: InstanceFrameReader, data: bytes, cuts: list[int]) -> list[tuple[Json, bytes]]:
    """Gives the reader the bytes in pieces: of the sizes `cuts`, then as large as its buffer."""
    found = []
    while data:
        buffer = reader.buffer()
        count = min(len(buffer), len(data), cuts.pop(0) if cuts else len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        found += [(head, bytes(payload)) for head, payload in reader.frames(count)]
    return found


payload_sizes = st.one_of(
    st.integers(0, 300), st.sampled_from([BUFFER_BYTES - 40, BUFFER_BYTES - 12, BUFFER_BYTES, 2 * BUFFER_BYTES + 7])
)


@settings(max_examples=60, deadline=None)
@given(st.lists(payload_sizes, max_size=6), st.lists(st.integers(1, 2 * BUFFER_BYTES), max_size=20))
def test_frames_come_out_as_they_went_in(sizes: list[int], cuts: list[int]) -> None:
    frames: list[tuple[Json, bytes]] = [
        ({"type": "t", "number": number}, bytes([number + 1]) * size) for number, size in enumerate(sizes)
    ]
    data = b"".join(frame_start(head, len(payload)) + payload for head, payload in frames)
    reader = InstanceFrameReader(MAX_BYTES)
    assert read(reader, data, cuts) == frames
    assert read(reader, data, []) == frames  # nothing of the first time is left


def test_the_payload_of_a_large_frame_is_not_copied_and_stays() -> None:
    reader = InstanceFrameReader(MAX_BYTES)
    data = frame_start({"type": "t"}, 2 * BUFFER_BYTES) + b"1" * 2 * BUFFER_BYTES
    [(_, first)] = list(large_frames(reader, data))
    list(large_frames(reader, data.replace(b"1", b"2")))
    assert isinstance(first, memoryview)
    assert bytes(first) == b"1" * 2 * BUFFER_BYTES


def large_frames(reader: InstanceFrameReader, data: bytes) -> list[tuple[Json, bytes | memoryview]]:
    found = []
    while data:
        buffer = reader.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        found += list(reader.frames(count))
    return found


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (PREFIX.pack(10, MAX_BYTES), "is too large"),
        (PREFIX.pack(MAX_BYTES, 0), "is too large"),
        (PREFIX.pack(3, 0) + b"{x}", "no JSON"),
        (PREFIX.pack(2, 0) + b"[]", "no object with a type"),
        (PREFIX.pack(10, 0) + b'{"type":1}', "no object with a type"),
        (PREFIX.pack(2, 0) + b"{}", "no object with a type"),
        (PREFIX.pack(0, 0), "no JSON"),
    ],
)
def test_what_is_no_frame_is_an_error(data: bytes, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        read(InstanceFrameReader(MAX_BYTES), data, [])


def test_numbers_of_a_head_may_be_nan_or_infinite_and_its_text_no_unicode() -> None:
    head = b'{"type":"metrics","values":[NaN,-Infinity,1e999],"text":"a\\udcffb \xc3\xa4"}'
    [(fields, _)] = read(InstanceFrameReader(MAX_BYTES), PREFIX.pack(len(head), 0) + head, [])
    nan, *infinite = fields["values"]
    assert math.isnan(nan)
    assert (infinite, fields["text"]) == ([-math.inf, math.inf], "a?b \u00e4")


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes_give_frames_or_one_kind_of_error(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        read(InstanceFrameReader(MAX_BYTES), data, [])
