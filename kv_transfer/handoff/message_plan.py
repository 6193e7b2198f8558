"""The list of messages of a hand-off, which both ends derive from the ticket alone.

A message carries one layer of one slab: the stream's heads of up to `slab_pages` consecutive wanted pages. Beside it
travels the XXH3-64 of these bytes. Layers of a slab that are ready together may be joined: the message then has the
number of the first layer, and its length tells how many there are.

    pages of the sequence   0  1  2  3 | 4  5  6  7 | 8  9 10 11 | 12 ...      slab_pages = 4
    wanted                           [3|4  5  6  7 | 8  9]                     first_page = 3, num_pages = 7
    slabs                         slab 0|  slab 1  |slab 2

    message   [ layers, slab pages, stream heads, head_bytes ]

Slabs end on multiples of `slab_pages` of the *sequence*, not of the wanted pages: prefill runs in chunks that start
at the sequence's first token, so a chunk of that many pages completes whole slabs wherever the destination's cached
prefix happened to end. Counted from `first_page`, every slab would wait for the chunk after its own.

Messages are numbered slab by slab and, within a slab, layer by layer, per stream. UCX's 64-bit tag says it all:

    | transfer id, 32 | source rank, 8 | message index, 24 |
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.kv_transfer.api.page_layout import HeadStream, PoolGeometry
from slipstream.kv_transfer.api.ticket import HandoffTicket

TRANSFER_ID_BITS, RANK_BITS, INDEX_BITS = 32, 8, 24


class TicketError(ValueError):
    """A ticket that does not fit this rank, or is not valid at all."""


@dataclass(frozen=True, slots=True)
class Message:
    """Pages `first .. first + num_pages` of the wanted ones, in layers `layer .. layer + num_layers`."""

    index: int
    layer: int
    num_layers: int
    first: int
    num_pages: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MessageTag:
    transfer_id: int
    source_rank: int
    index: int

    def pack(self) -> int:
        return (self.transfer_id << (RANK_BITS + INDEX_BITS)) | (self.source_rank << INDEX_BITS) | self.index

    @classmethod
    def unpack(cls, tag: int) -> MessageTag:
        return cls(
            tag >> (RANK_BITS + INDEX_BITS),
            (tag >> INDEX_BITS) & ((1 << RANK_BITS) - 1),
            tag & ((1 << INDEX_BITS) - 1),
        )


class StreamPlan:
    """The messages of one stream of a ticket. Raises TicketError if they cannot be numbered."""

    def __init__(self, ticket: HandoffTicket, stream: HeadStream) -> None:
        _check_ticket(ticket)
        self.ticket = ticket
        self.stream = stream
        self._first_slab = ticket.first_page // ticket.slab_pages
        if self.num_messages > 1 << INDEX_BITS:
            raise TicketError(f"{self.num_messages} messages in a stream; at most {1 << INDEX_BITS} can be numbered")
        if not 0 <= stream.source_rank < 1 << RANK_BITS:
            raise TicketError(f"source rank {stream.source_rank} does not fit {RANK_BITS} bits")

    @property
    def num_slabs(self) -> int:
        end = self.ticket.first_page + self.ticket.num_pages
        return -(-end // self.ticket.slab_pages) - self._first_slab if self.ticket.num_pages else 0

    @property
    def num_messages(self) -> int:
        """The number of messages if none are joined."""
        return self.num_slabs * self.ticket.num_layers

    @property
    def payload_bytes(self) -> int:
        """The number of bytes of all pages of this stream."""
        ticket = self.ticket
        return ticket.num_layers * ticket.num_pages * self.stream.num_heads * ticket.head_bytes

    @property
    def layer_bytes(self) -> int:
        """The number of bytes of one layer of a full slab."""
        return self.ticket.slab_pages * self.stream.num_heads * self.ticket.head_bytes

    def slab_end(self, slab: int) -> int:
        """The page of the sequence that follows the slab."""
        ticket = self.ticket
        return min((self._first_slab + slab + 1) * ticket.slab_pages, ticket.first_page + ticket.num_pages)

    def slabs_within(self, num_pages: int) -> int:
        """How many slabs, from the first, lie within the first `num_pages` pages of the sequence."""
        ticket = self.ticket
        if num_pages >= ticket.first_page + ticket.num_pages:
            return self.num_slabs
        return max(0, num_pages // ticket.slab_pages - self._first_slab)

    def index(self, slab: int, layer: int) -> int:
        return slab * self.ticket.num_layers + layer

    def message(self, index: int, num_layers: int = 1) -> Message:
        """The message with this number and so many layers. Raises TicketError if there is no such message."""
        if not 0 <= index < self.num_messages:
            raise TicketError(f"message {index} of a stream with {self.num_messages}")
        ticket = self.ticket
        slab, layer = divmod(index, ticket.num_layers)
        if not 1 <= num_layers <= ticket.num_layers - layer:
            raise TicketError(f"{num_layers} layers from layer {layer} on, of {ticket.num_layers}")
        first = max((self._first_slab + slab) * ticket.slab_pages, ticket.first_page)
        num_pages = self.slab_end(slab) - first
        num_bytes = num_layers * num_pages * self.stream.num_heads * ticket.head_bytes
        return Message(index, layer, num_layers, first - ticket.first_page, num_pages, num_bytes)

    def message_of(self, index: int, num_bytes: int) -> Message:
        """The message of this number and length. Raises TicketError if there is none."""
        one = self.message(index)
        num_layers, rest = divmod(num_bytes, one.num_bytes)
        if rest or not 1 <= num_layers <= self.ticket.num_layers - one.layer:
            raise TicketError(f"message {index} with {num_bytes} bytes, not {one.num_bytes} a layer")
        return self.message(index, num_layers)

    def follows(self, index: int, next_index: int) -> bool:
        """Whether `next_index` is the layer after `index` of the same slab."""
        return next_index == index + 1 and next_index % self.ticket.num_layers != 0

    def tag(self, index: int) -> int:
        return MessageTag(self.ticket.transfer_id, self.stream.source_rank, index).pack()

    def seed(self, index: int) -> int:
        """The seed of the message's checksum, which is different for each message. So intact pages that land in the
        wrong place, or that were meant for the destination's previous epoch, are detected like flipped bits."""
        epoch = self.ticket.destination.epoch & 0xFFFFFFFF
        return self.tag(index) ^ (epoch * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)


def message_bytes(slab_pages: int, geometry: PoolGeometry) -> int:
    """The size of the largest message that a rank can have to send or receive with slabs of so many pages."""
    return slab_pages * geometry.page_bytes


def _check_ticket(ticket: HandoffTicket) -> None:
    if not 0 <= ticket.transfer_id < 1 << TRANSFER_ID_BITS:
        raise TicketError(f"transfer id {ticket.transfer_id} does not fit {TRANSFER_ID_BITS} bits")
    for name, value, least in (
        ("first_page", ticket.first_page, 0),
        ("num_pages", ticket.num_pages, 0),
        ("slab_pages", ticket.slab_pages, 1),
        ("num_layers", ticket.num_layers, 1),
        ("num_kv_heads", ticket.num_kv_heads, 1),
        ("head_bytes", ticket.head_bytes, 1),
    ):
        if value < least:
            raise TicketError(f"{name} of a ticket must be at least {least}, got {value}")
