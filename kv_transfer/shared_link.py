"""A link to a rank of the same host, and the packets that go over it after the greeting.

record    kind | bytes
offers    kind | layer, first head, heads, pages, number, tag, checksum, page ids | layer, ...
taken     kind | number | number | ...
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.kv_transfer.layout import PoolGeometry
from slipstream.kv_transfer.packet_socket import PACKET_BYTES, PacketSocket
from slipstream.kv_transfer.page_transport import Pages
from slipstream.kv_transfer.pool import HostPages, PageIds
from slipstream.kv_transfer.transport import Arrival, Done

_OFFER = struct.Struct("<IIIIQQQ")  # as in the picture; page ids have 8 bytes each
_NUMBER = struct.Struct("<Q")
RECORD, OFFERS, TAKEN = (kind.to_bytes(8, "little") for kind in (1, 2, 3))


@dataclass(slots=True, eq=False)
class SharedLink:
    socket: PacketSocket
    greeting: bytes
    bell: int | None = None  # the peer's
    pool: HostPages | None = None  # the peer's, if it sends
    is_alive: bool = True
    is_answered: bool = False
    num_offers: int = 0
    offers: dict[int, Done] = field(default_factory=dict)  # by number

    def write(self, packet: bytes) -> None:
        """Sends a packet, or queues it, and rings the bell."""
        self.socket.send(packet)
        if self.bell is not None:
            with contextlib.suppress(BlockingIOError):  # it has been rung often enough
                os.eventfd_write(self.bell, 1)


@dataclass(frozen=True, slots=True)
class Offer:
    """Pages of a peer's pool that it wants to be pulled."""

    link: SharedLink
    number: int
    layer: int
    heads: range
    page_ids: PageIds
    checksum: int


def is_offer(arrival: Arrival) -> bool:
    """Whether an arrival came over such a link."""
    return isinstance(arrival.handle, Offer)


def encode_offer(pages: Pages, number: int, tag: int, checksum: int) -> bytes:
    heads, page_ids = pages.heads, pages.page_ids
    head = _OFFER.pack(pages.layer, heads.start, len(heads), len(page_ids), number, tag, checksum)
    return head + page_ids.tobytes()


def read_offers(link: SharedLink, geometry: PoolGeometry, body: bytes) -> Iterator[Arrival]:
    """Raises ValueError for bytes that are no offers of pages of such a pool."""
    at = 0
    while at < len(body):
        if len(body) - at < _OFFER.size:
            raise ValueError("half an offer")
        layer, first_head, num_heads, num_pages, number, tag, checksum = _OFFER.unpack_from(body, at)
        at += _OFFER.size
        if first_head + num_heads > geometry.num_heads or 8 * num_pages > len(body) - at:
            raise ValueError(f"an offer of heads {first_head} + {num_heads} of {geometry.num_heads}, {num_pages} pages")
        page_ids = np.frombuffer(body, np.int64, num_pages, at)
        at += 8 * num_pages
        offer = Offer(link, number, layer, range(first_head, first_head + num_heads), page_ids, checksum)
        yield Arrival(tag, num_pages * num_heads * geometry.head_bytes, offer)


def encode_taken(numbers: Sequence[int]) -> bytes:
    return TAKEN + b"".join(_NUMBER.pack(number) for number in numbers)


def read_taken(body: bytes) -> list[int]:
    """Ignores an incomplete number at the end."""
    return [number for (number,) in _NUMBER.iter_unpack(body[: len(body) // _NUMBER.size * _NUMBER.size])]


def fill_packets(parts: Sequence[bytes], max_bytes: int = PACKET_BYTES - len(OFFERS)) -> Iterator[bytes]:
    """Joins the parts, in order, into as few packets as hold them; no part may be longer than a packet."""
    packet = b""
    for part in parts:
        if len(packet) + len(part) > max_bytes:
            yield packet
            packet = b""
        packet += part
    yield packet
