"""The common part of all `PageTransport`s that use a `Transport`: everything except the pages."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np

from slipstream.kv_transfer.api.page_transport import Landed, MessagePages
from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import Link, MessageArrival, Transport, TransportEvents

CHECKSUM_BYTES = 8

Wire = TypeVar("Wire", bound=Transport)


class OverTransport(Generic[Wire]):
    """Forwards the calls of a `PageTransport` to its wire, where messages are `trailer_bytes` longer than their
    pages."""

    def __init__(self, transport: Wire, trailer_bytes: int = CHECKSUM_BYTES) -> None:
        self._transport = transport
        self._trailer_bytes = trailer_bytes
        self._events: TransportEvents | None = None

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

    def joins_layers(self, link: Link) -> bool:
        return False

    def refuses(self, arrival: MessageArrival, pages: MessagePages, landed: Landed) -> bool:
        """Whether the message joins several layers, which the peer was told not to do. If so, it is discarded."""
        if pages.num_layers == 1:
            return False
        self.discard(arrival)
        landed(f"{pages.num_layers} layers in one message, where they are not joined", False)
        return True

    def discard(self, arrival: MessageArrival) -> None:
        raw = self._raw(arrival)
        self._transport.receive(raw, np.empty(raw.num_bytes, np.uint8), _forget)

    def progress(self) -> bool:
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

    def on_arrival(self, arrival: MessageArrival) -> None:
        assert self._events is not None
        # A message that is too short for its trailer gets a negative size, which matches no expected message.
        self._events.on_arrival(MessageArrival(arrival.tag, arrival.num_bytes - self._trailer_bytes, arrival.handle))

    def on_lost(self, link: Link, reason: str) -> None:
        assert self._events is not None
        self._events.on_lost(link, reason)

    def _raw(self, arrival: MessageArrival) -> MessageArrival:
        """The arrival with its size on the wire."""
        return MessageArrival(arrival.tag, arrival.num_bytes + self._trailer_bytes, arrival.handle)


def _forget(error: str | None) -> None:
    """Called when an unwanted message is gone, whether it was intact or not."""
