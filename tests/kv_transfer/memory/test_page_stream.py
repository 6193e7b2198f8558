"""Streams of pages, packed and unpacked in pieces of any size: by the very functions that UCX calls."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import CFUNCTYPE, Structure, c_char_p, c_int32, c_size_t, c_void_p, create_string_buffer

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.kv_transfer.api.page_transport import CHECKSUM_BYTES, MessagePages
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.page_stream import PageStream, StreamLibrary
from slipstream.kv_transfer.memory.row_copy import usable_variants

NUM_PAGES, NUM_HEADS = 8, 4
OK, TRUNCATED = 0, -9  # of UCX
SIZE_MAX = (1 << 64) - 1


class Operations(Structure):
    """ucp_generic_dt_ops, as ucp.h declares it."""

    _fields_ = (
        ("start_pack", CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)),
        ("start_unpack", CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)),
        ("packed_size", CFUNCTYPE(c_size_t, c_void_p)),
        ("pack", CFUNCTYPE(c_size_t, c_void_p, c_size_t, c_void_p, c_size_t)),
        ("unpack", CFUNCTYPE(c_int32, c_void_p, c_size_t, c_char_p, c_size_t)),
        ("finish", CFUNCTYPE(None, c_void_p)),
    )


def library(variant: str) -> StreamLibrary:
    try:
        return StreamLibrary(variant)
    except (OSError, AttributeError) as error:
        pytest.skip(f"not built here: {error}")


def pieces(num_bytes: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
    for offset in range(0, num_bytes, piece_bytes):
        yield offset, min(piece_bytes, num_bytes - offset)


class End:
    """A stream at one end, driven as by UCX."""

    def __init__(self, streams: StreamLibrary, pool: HostPagePool, pages: MessagePages, spoil: bool = False) -> None:
        self.stream = PageStream(streams, pool, pages, spoil)
        self._operations = Operations.from_address(streams.operations)

    def pack(self, offset: int, num_bytes: int) -> bytes:
        """In as many calls as it takes: there may be less in a buffer than there is room for."""
        state = self._operations.start_pack(None, self.stream.handle, 1)
        assert self._operations.packed_size(state) == len(self.stream)
        packed = b""
        while len(packed) < num_bytes:
            out = create_string_buffer(num_bytes - len(packed))
            size = self._operations.pack(state, offset + len(packed), out, len(out))
            assert 0 < size <= len(out)
            packed += out.raw[:size]
        return packed

    def unpack(self, offset: int, piece: bytes) -> int:
        state = self._operations.start_unpack(None, self.stream.handle, 1)
        status: int = self._operations.unpack(state, offset, piece, len(piece))
        return status


def make_pool(head_bytes: int, seed: int) -> HostPagePool:
    generator = np.random.default_rng(seed)
    return HostPagePool(generator.integers(0, 256, (2, NUM_PAGES, NUM_HEADS, head_bytes), np.uint8))


HEAD_BYTES = st.one_of(st.integers(241, 3000), st.sampled_from([256, 512, 960, 1024, 2048, 4096]))


@pytest.mark.parametrize("variant", usable_variants())
@settings(max_examples=100, deadline=None)
@given(
    head_bytes=HEAD_BYTES,
    ids=st.permutations(range(NUM_PAGES)),
    num_pages=st.integers(1, NUM_PAGES),
    num_layers=st.integers(1, 2),
    heads=st.sampled_from([range(4), range(2), range(2, 4), range(1, 2)]),
    packed_bytes=st.integers(1, 20_000),
    unpacked_bytes=st.integers(1, 20_000),
    order=st.randoms(use_true_random=False),
    in_order=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)
def test_pages_arrive_whatever_the_pieces_and_their_order(
    variant: str, head_bytes: int, ids: list[int], num_pages: int, num_layers: int, heads: range, packed_bytes: int,
    unpacked_bytes: int, order: object, in_order: bool, seed: int,
) -> None:  # fmt: skip
    streams = library(variant)
    source, destination = make_pool(head_bytes, 1), make_pool(head_bytes, 2)
    source_ids, ids_there = np.array(ids[:num_pages], np.int64), np.array(ids[::-1][:num_pages], np.int64)
    sender = End(streams, source, MessagePages(0, source_ids, heads, seed, num_layers))
    receiver = End(streams, destination, MessagePages(0, ids_there, heads, seed, num_layers))
    num_bytes = len(sender.stream)
    message = bytearray(num_bytes)
    to_pack, to_unpack = (
        list(pieces(num_bytes, max(packed_bytes, num_bytes // 200))),
        list(pieces(num_bytes, max(unpacked_bytes, num_bytes // 200))),
    )
    if not in_order:
        order.shuffle(to_pack)  # type: ignore[attr-defined]
        order.shuffle(to_unpack)  # type: ignore[attr-defined]
    for offset, size in to_pack:
        message[offset : offset + size] = sender.pack(offset, size)

    payload = np.empty(num_bytes - CHECKSUM_BYTES, np.uint8)
    for layer, some in enumerate(np.split(payload, num_layers)):
        source.gather(layer, source_ids, heads, some)
    checksum = xxhash.xxh3_64_intdigest(payload.tobytes(), seed=seed)
    assert message == payload.tobytes() + checksum.to_bytes(CHECKSUM_BYTES, "little")

    expected = make_pool(head_bytes, 2)
    for layer, some in enumerate(np.split(payload, num_layers)):
        expected.scatter(layer, ids_there, heads, some)
    for count, (offset, size) in enumerate(to_unpack):
        assert not receiver.stream.is_whole() or count == len(to_unpack)
        assert receiver.unpack(offset, bytes(message[offset : offset + size])) == OK
    assert receiver.stream.is_whole()
    assert (destination._array == expected._array).all()
    sender.stream.close()
    receiver.stream.close()


@pytest.mark.parametrize("variant", usable_variants())
def test_the_sums_of_a_stream_lie_in_one_line_of_the_cache(variant: str) -> None:
    """Across two pages of memory they are stored so slowly that a receiver takes 1.7 times as long."""
    pages, pool = MessagePages(0, np.array([5, 1, 2], np.int64), range(2), 7), make_pool(4096, 1)
    streams = [PageStream(library(variant), pool, pages) for _ in range(16)]
    assert [stream.handle % 64 for stream in streams if stream.handle is not None] == [0] * 16
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("variant", usable_variants())
@pytest.mark.parametrize("flipped", [0, 5000, 3 * 2 * 4096 - 1, 3 * 2 * 4096])
def test_a_flipped_bit_anywhere_is_noticed(variant: str, flipped: int) -> None:
    pages = MessagePages(0, np.array([5, 1, 2], np.int64), range(2), 7)
    sender, receiver = (End(library(variant), make_pool(4096, seed), pages) for seed in (1, 2))
    message = bytearray(sender.pack(0, len(sender.stream)))
    message[flipped] ^= 4
    assert receiver.unpack(0, bytes(message)) == OK
    assert not receiver.stream.is_whole()


@pytest.mark.parametrize("variant", usable_variants())
def test_a_spoilt_stream_and_one_with_too_many_bytes_are_not_whole(variant: str) -> None:
    pages = MessagePages(0, np.array([5, 1, 2], np.int64), range(2), 7)
    sender, receiver = (End(library(variant), make_pool(4096, seed), pages, spoil=True) for seed in (1, 2))
    assert receiver.unpack(0, sender.pack(0, len(sender.stream))) == OK
    assert not receiver.stream.is_whole()
    assert receiver.unpack(len(receiver.stream) - 4, bytes(5)) == TRUNCATED


@pytest.mark.parametrize("variant", usable_variants())
def test_a_message_for_which_there_is_room_without_end_is_packed_as_a_whole(variant: str) -> None:
    """UCX asks so for one that fits into a single segment."""
    pages = MessagePages(0, np.array([5, 1, 2], np.int64), range(2), 7)
    sender, receiver = (End(library(variant), make_pool(2048, seed), pages) for seed in (1, 2))
    out = create_string_buffer(len(sender.stream))
    state = sender._operations.start_pack(None, sender.stream.handle, 1)
    assert sender._operations.pack(state, 0, out, SIZE_MAX) == len(sender.stream)
    assert receiver.unpack(0, out.raw) == OK
    assert receiver.stream.is_whole()
