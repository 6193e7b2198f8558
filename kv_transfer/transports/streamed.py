"""Moves pages over a transport that packs and unpacks them itself, so that they are not staged.

    pages --pack--> [ segments of the wire ] ==> [ segments ] --unpack--> pages

What arrives is written to its pages piece by piece, before its checksum is known. A transfer with a wrong checksum has
failed, and its pages are not read.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from slipstream.kv_transfer.api.page_transport import CHECKSUM_BYTES, FaultInjection, Landed, MessagePages
from slipstream.kv_transfer.api.transport import Buffer, Done, Link, MessageArrival, Transport
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.page_stream import PageStream, StreamLibrary
from slipstream.kv_transfer.transports.staging import receive_into_scrap

MAX_IN_FLIGHT = 8  # messages on a link, and from a peer
TURN_BYTES = 8 << 20  # after which the wire is served; it packs what it has room for while it is given a message


class StreamTransport(Transport, Protocol):
    """A `Transport` whose messages may be streams. A stream is received whole or not at all, like a buffer."""

    def send(self, link: Link, tag: int, buffer: Buffer | PageStream, done: Done) -> None: ...

    def receive(self, arrival: MessageArrival, buffer: Buffer | PageStream, done: Done) -> None: ...


class StreamedMover:
    """A `PageMover`. No message may have less than MIN_BYTES of pages."""

    def __init__(
        self, transport: StreamTransport, pool: HostPagePool, library: StreamLibrary, fault_injection: FaultInjection
    ) -> None:
        self._transport = transport
        self._pool = pool
        self._library = library
        self._fault_injection = fault_injection
        self._num_sent_bytes = 0  # since `work`

    @property
    def joins_layers(self) -> bool:
        return True

    @property
    def num_in_flight(self) -> int:
        return self._transport.num_in_flight

    def payload_bytes(self, arrival: MessageArrival) -> int:
        return arrival.num_bytes - CHECKSUM_BYTES

    def can_send(self, num_in_flight: int) -> bool:
        return num_in_flight < MAX_IN_FLIGHT and self._num_sent_bytes < TURN_BYTES

    def can_receive(self, num_in_flight: int) -> bool:
        return num_in_flight < MAX_IN_FLIGHT

    def send(self, link: Link, tag: int, pages: MessagePages, done: Done) -> None:
        stream = PageStream(
            self._library, self._pool, pages, spoil=self._fault_injection.should_corrupt(pages.num_layers)
        )
        self._num_sent_bytes += len(stream)
        self._transport.send(link, tag, stream, partial(_on_sent, stream, done))

    def receive(self, arrival: MessageArrival, pages: MessagePages, landed: Landed) -> None:
        stream = PageStream(self._library, self._pool, pages)
        self._transport.receive(arrival, stream, partial(_on_received, stream, landed))

    def discard(self, arrival: MessageArrival) -> None:
        receive_into_scrap(self._transport, arrival)

    def work(self) -> bool:
        self._num_sent_bytes = 0
        return False

    def pause(self) -> bool:
        return False

    def give_up(self) -> None:
        """Nothing is in flight without the channel."""


def _on_sent(stream: PageStream, done: Done, error: str | None) -> None:
    stream.close()
    done(error)


def _on_received(stream: PageStream, landed: Landed, error: str | None) -> None:
    is_whole = error is None and stream.is_whole()
    stream.close()
    landed(error, is_whole)
