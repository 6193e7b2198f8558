"""Messages are prepared several at a time, but the first one alone: the receiver should begin at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from slipstream.kv_transfer.page_stream import PageStream, native_streams
from slipstream.kv_transfer.page_transport import FireDrill, Pages, PageTransport
from slipstream.kv_transfer.pool import HostPagePool
from slipstream.kv_transfer.pool_memory import PoolMemory
from slipstream.kv_transfer.shared_pool import SharedPoolTransport
from slipstream.kv_transfer.streamed import StreamedTransport
from slipstream.kv_transfer.ticket import TransferAddress
from slipstream.kv_transfer.transport import Arrival, Done, Link

SHAPE = (1, 8, 2, 1024)
ports = count(1)


class Wire:
    """A `StreamTransport` that takes all messages and finishes none."""

    address = TransferAddress("here", 1)

    def __init__(self) -> None:
        self.sent: list[tuple[Any, PageStream, Done]] = []

    @property
    def num_in_flight(self) -> int:
        return len(self.sent)

    def send(self, link: Link, tag: int, buffer: Any, done: Done) -> None:
        self.sent.append((link, buffer, done))

    def progress(self) -> bool:
        return False

    def disconnect(self, link: Link) -> None: ...
    def close(self) -> None: ...


class Listener:
    """`TransportEvents` of an end that takes offers and does nothing about them."""

    def __init__(self) -> None:
        self.num_arrivals = 0

    def on_link(self, link: Link) -> None: ...
    def on_record(self, link: Link, record: bytes) -> None: ...
    def on_lost(self, link: Link, reason: str) -> None: ...

    def on_arrival(self, arrival: Arrival) -> None:
        self.num_arrivals += 1


def make_pages() -> Pages:
    return Pages(0, np.arange(4, dtype=np.int64), range(2), 1)


def post_all(transport: PageTransport, link: Link, num_in_flight: int, done: Done = lambda error: None) -> int:
    """Sends for as long as there is room; returns how many there were."""
    num_posted = 0
    while transport.can_send(link, num_in_flight + num_posted):
        transport.send(link, num_posted, make_pages(), done)
        num_posted += 1
    return num_posted


@pytest.fixture
def streamed() -> tuple[StreamedTransport, Wire]:
    library = native_streams()
    if library is None:
        pytest.skip("no native streams here")
    wire = Wire()
    return StreamedTransport(wire, HostPagePool(np.zeros(SHAPE, np.uint8)), library, FireDrill(0)), wire  # type: ignore[arg-type]


@pytest.fixture
def shared() -> Iterator[Callable[[], SharedPoolTransport]]:
    opened: list[SharedPoolTransport] = []

    def open_one() -> SharedPoolTransport:
        memory = PoolMemory(int(np.prod(SHAPE)))
        pool = HostPagePool(np.frombuffer(memory.buffer, np.uint8).reshape(SHAPE), memory)
        address = TransferAddress("batches-of-messages", next(ports))
        opened.append(SharedPoolTransport(address, pool, "token", FireDrill(0)))
        return opened[-1]

    yield open_one
    for transport in opened:
        transport.close()


def test_a_wire_gets_one_message_and_then_batches(streamed: tuple[StreamedTransport, Wire]) -> None:
    transport, wire = streamed
    batches = []
    for _ in range(4):
        batches.append(post_all(transport, "link", len(wire.sent)))
        transport.progress()
    assert batches == [1, 2, 4, 1]
    assert len(wire.sent) == transport.num_in_flight == 8


def test_messages_that_the_wire_never_got_fail_with_their_link(streamed: tuple[StreamedTransport, Wire]) -> None:
    transport, wire = streamed
    ended: dict[str, list[str | None]] = {"broken": [], "whole": []}
    for link, errors in ended.items():
        transport.send(link, 1, make_pages(), errors.append)
    assert transport.num_in_flight == 2
    transport.disconnect("broken")
    assert ended == {"broken": ["the link is down"], "whole": []}
    transport.progress()
    assert [link for link, _, _ in wire.sent] == ["whole"]


def test_closing_ends_messages_that_the_wire_never_got(streamed: tuple[StreamedTransport, Wire]) -> None:
    transport, wire = streamed
    errors: list[str | None] = []
    transport.send("link", 1, make_pages(), errors.append)
    transport.close()
    assert errors == ["the link is down"]
    assert not wire.sent
    assert transport.num_in_flight == 0


def test_a_shared_pool_offers_one_message_and_then_batches(shared: Callable[[], SharedPoolTransport]) -> None:
    sender, receiver = shared(), shared()
    listener = Listener()
    sender.start(Listener())
    receiver.start(listener)
    link = sender.connect(receiver.address)
    batches, num_in_flight = [], 0
    for _ in range(5):
        batches.append(post_all(sender, link, num_in_flight))
        num_in_flight += batches[-1]
        sender.progress()
    assert batches == [1, 2, 4, 8, 8]
    while receiver.progress():
        sender.progress()
    assert listener.num_arrivals == num_in_flight
