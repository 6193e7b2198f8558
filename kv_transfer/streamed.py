"""Pages over a transport that packs and unpacks them itself: none of them are staged.

    pages --pack--> [ segments of the wire ] ==> [ segments ] --unpack--> pages

What arrives goes into its pages piece by piece, before its checksum is known; a transfer with a wrong one has failed,
and nobody looks at its pages.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np

from slipstream.kv_transfer.page_stream import CHECKSUM_BYTES, PageStream, StreamLibrary
from slipstream.kv_transfer.page_transport import FireDrill, Landed, Pages
from slipstream.kv_transfer.pool import HostPagePool
from slipstream.kv_transfer.ticket import TransferAddress
from slipstream.kv_transfer.transport import Arrival, Buffer, Done, Link, Transport, TransportEvents

MAX_IN_FLIGHT = 8  # messages of a link, and from a peer


class StreamTransport(Transport, Protocol):
    """A `Transport` whose messages may be streams. A stream is received whole or not at all, like a buffer."""

    def send(self, link: Link, tag: int, buffer: Buffer | PageStream, done: Done) -> None: ...

    def receive(self, arrival: Arrival, buffer: Buffer | PageStream, done: Done) -> None: ...


class StreamedTransport:
    """A `PageTransport`. No message may have less than MIN_BYTES of pages."""

    def __init__(
        self, transport: StreamTransport, pool: HostPagePool, library: StreamLibrary, drill: FireDrill
    ) -> None:
        self._transport = transport
        self._pool = pool
        self._library = library
        self._drill = drill
        self._events: TransportEvents | None = None
        self._has_sent = False  # since `progress`: the wire is looked after between two messages

    @property
    def address(self) -> TransferAddress:
        return self._transport.address

    @property
    def num_in_flight(self) -> int:
        return self._transport.num_in_flight

    def start(self, events: TransportEvents) -> None:
        self._events = events
        self._transport.start(self)

    def connect(self, address: TransferAddress) -> Link:
        return self._transport.connect(address)

    def disconnect(self, link: Link) -> None:
        self._transport.disconnect(link)

    def send_record(self, link: Link, record: bytes) -> None:
        self._transport.send_record(link, record)

    def can_send(self, link: Link, num_in_flight: int) -> bool:
        return num_in_flight < MAX_IN_FLIGHT and not self._has_sent

    def can_receive(self, arrival: Arrival, num_in_flight: int) -> bool:
        return num_in_flight < MAX_IN_FLIGHT

    def send(self, link: Link, tag: int, pages: Pages, done: Done) -> None:
        stream = PageStream(self._library, self._pool, pages, spoil=self._drill.strikes())
        self._has_sent = True
        self._transport.send(link, tag, stream, partial(_on_sent, stream, done))

    def receive(self, arrival: Arrival, pages: Pages, landed: Landed) -> None:
        stream = PageStream(self._library, self._pool, pages)
        self._transport.receive(_raw(arrival), stream, partial(_on_received, stream, landed))

    def discard(self, arrival: Arrival) -> None:
        raw = _raw(arrival)
        self._transport.receive(raw, np.empty(raw.num_bytes, np.uint8), _forget)

    def progress(self) -> bool:
        self._has_sent = False
        return self._transport.progress()

    def wait(self, timeout_s: float) -> None:
        self._transport.wait(timeout_s)

    def wake(self) -> None:
        self._transport.wake()

    def close(self) -> None:
        self._transport.close()

    # ---- what the transport tells

    def on_link(self, link: Link) -> None:
        assert self._events is not None
        self._events.on_link(link)

    def on_record(self, link: Link, record: bytes) -> None:
        assert self._events is not None
        self._events.on_record(link, record)

    def on_arrival(self, arrival: Arrival) -> None:
        assert self._events is not None
        # A message too short for a checksum has a negative size, which is no message's.
        self._events.on_arrival(Arrival(arrival.tag, arrival.num_bytes - CHECKSUM_BYTES, arrival.handle))

    def on_lost(self, link: Link, reason: str) -> None:
        assert self._events is not None
        self._events.on_lost(link, reason)


def _raw(arrival: Arrival) -> Arrival:
    return Arrival(arrival.tag, arrival.num_bytes + CHECKSUM_BYTES, arrival.handle)


def _on_sent(stream: PageStream, done: Done, error: str | None) -> None:
    stream.close()
    done(error)


def _on_received(stream: PageStream, landed: Landed, error: str | None) -> None:
    is_whole = error is None and stream.is_whole()
    stream.close()
    landed(error, is_whole)


def _forget(error: str | None) -> None:
    """An unwanted message is gone, whole or broken."""
