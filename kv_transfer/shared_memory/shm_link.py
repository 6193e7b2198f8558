"""A link to a rank of the same host, and the packets that go over it.

greeting  ... layers, pages, heads, head_bytes of the pool
record    kind | bytes
offers    kind | core | layer, layers, first head, heads, pages, number, tag, page ids | layer, ...
sums      kind | number, checksum | number, checksum | ...
taken     kind | number | number | ...

`core` is the core that the packet's sender runs on.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.kv_transfer.api.page_layout import PageIds, PoolGeometry
from slipstream.kv_transfer.api.page_transport import MessagePages
from slipstream.kv_transfer.api.transport import Done, MessageArrival
from slipstream.kv_transfer.memory.host_pages import HostPages
from slipstream.kv_transfer.memory.pool_memory import view_of
from slipstream.kv_transfer.sockets.packet_socket import PACKET_BYTES, PacketSocket

_OFFER = struct.Struct("<IIIIQQQ")  # as shown above; page ids have 8 bytes each
_SUM = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")
_GEOMETRY = struct.Struct("<QQQQ")
RECORD, OFFERS, SUMS, TAKEN = (kind.to_bytes(8, "little") for kind in (1, 2, 3, 4))
NO_CORE = (1 << 64) - 1


@dataclass(slots=True, eq=False)
class ShmLink:
    socket: PacketSocket
    greeting: bytes
    event_fd: int | None = None  # the peer's
    pool: HostPages | None = None  # the peer's, if it sends
    is_alive: bool = True
    is_answered: bool = False
    num_offers: int = 0
    offers: dict[int, Done] = field(default_factory=dict)  # to the peer, by number
    offered: dict[int, Offer] = field(default_factory=dict)  # by the peer, and not taken yet

    def write(self, packet: bytes) -> None:
        """Sends a packet, or queues it, and wakes the peer."""
        self.socket.send(packet)
        if self.event_fd is not None:
            with contextlib.suppress(BlockingIOError):  # its counter is full, so it is ringing anyway
                os.eventfd_write(self.event_fd, 1)


@dataclass(slots=True, eq=False)
class Offer:
    """Pages of a peer's pool that the peer wants us to pull."""

    link: ShmLink
    number: int
    layer: int
    num_layers: int
    heads: range
    page_ids: PageIds
    checksum: int | None = None  # follows once the peer has computed it


def encode_geometry(geometry: PoolGeometry) -> bytes:
    """The body of a greeting."""
    return _GEOMETRY.pack(geometry.num_layers, geometry.num_pages, geometry.num_heads, geometry.head_bytes)


def map_pool(file: int, body: bytes, ours: PoolGeometry) -> HostPages:
    """The pool of a peer whose greeting has this body. Raises ValueError if it does not fit, OSError."""
    if len(body) != _GEOMETRY.size:
        raise ValueError(f"its greeting has a body of {len(body)} bytes, not {_GEOMETRY.size}")
    shape = _GEOMETRY.unpack(body)
    if (shape[0], shape[3]) != (ours.num_layers, ours.head_bytes):
        raise ValueError(f"its pool [layers, pages, heads, head_bytes] is {list(shape)}, which does not fit {ours}")
    view = view_of(file, shape[0] * shape[1] * shape[2] * shape[3])
    return HostPages(np.frombuffer(view, np.uint8).reshape(shape))


def encode_offer(pages: MessagePages, number: int, tag: int) -> bytes:
    heads, page_ids = pages.heads, pages.page_ids
    head = _OFFER.pack(pages.layer, pages.num_layers, heads.start, len(heads), len(page_ids), number, tag)
    return head + page_ids.tobytes()


def encode_offers(offers: Sequence[bytes], core: int | None) -> Iterator[bytes]:
    """Packets that contain these offers."""
    head = OFFERS + _NUMBER.pack(NO_CORE if core is None else core)
    return (head + packet for packet in fill_packets(offers, PACKET_BYTES - len(head)))


def read_offers(link: ShmLink, geometry: PoolGeometry, body: bytes) -> Iterator[MessageArrival]:
    """The offers in a packet. Raises ValueError if they are not offers of pages of such a pool."""
    at = _NUMBER.size
    while at < len(body):
        if len(body) - at < _OFFER.size:
            raise ValueError("half an offer")
        layer, num_layers, first_head, num_heads, num_pages, number, tag = _OFFER.unpack_from(body, at)
        at += _OFFER.size
        if first_head + num_heads > geometry.num_heads or 8 * num_pages > len(body) - at:
            raise ValueError(f"an offer of heads {first_head} + {num_heads} of {geometry.num_heads}, {num_pages} pages")
        if number in link.offered:
            raise ValueError(f"offer {number} was made twice")
        page_ids = np.frombuffer(body, np.int64, num_pages, at)
        at += 8 * num_pages
        if num_layers != 1 and num_pages and not 0 <= page_ids.min() <= page_ids.max() < geometry.num_pages:
            raise ValueError("an offer of pages that its sender does not have")  # they are of another layer
        heads = range(first_head, first_head + num_heads)
        offer = link.offered[number] = Offer(link, number, layer, num_layers, heads, page_ids)
        yield MessageArrival(link, tag, num_layers * num_pages * num_heads * geometry.head_bytes, offer)


def read_core(body: bytes) -> int | None:
    """The sender's core, from the body of an offers packet; None if unknown."""
    core = int.from_bytes(body[: _NUMBER.size], "little")
    return None if core == NO_CORE else core


def encode_sums(sums: Sequence[tuple[int, int]]) -> bytes:
    return SUMS + b"".join(_SUM.pack(number, checksum) for number, checksum in sums)


def read_sums(body: bytes) -> list[tuple[int, int]]:
    """The (number, checksum) pairs of a packet. An incomplete one at the end is ignored."""
    return list(_SUM.iter_unpack(body[: len(body) // _SUM.size * _SUM.size]))


def encode_taken(numbers: Sequence[int]) -> bytes:
    return TAKEN + b"".join(_NUMBER.pack(number) for number in numbers)


def read_taken(body: bytes) -> list[int]:
    """The numbers in a packet. An incomplete one at the end is ignored."""
    return [number for (number,) in _NUMBER.iter_unpack(body[: len(body) // _NUMBER.size * _NUMBER.size])]


def fill_packets(parts: Sequence[bytes], max_bytes: int) -> Iterator[bytes]:
    """Joins the parts, in order, into as few packets as possible. No part may be longer than a packet."""
    packet = b""
    for part in parts:
        if len(packet) + len(part) > max_bytes:
            yield packet
            packet = b""
        packet += part
    yield packet
