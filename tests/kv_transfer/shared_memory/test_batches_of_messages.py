"""Offers are made several at a time, but the first one alone: the receiver should begin at once. Sums follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest

from slipstream.kv_transfer.api.page_transport import FaultInjection, MessagePages
from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import Link, MessageArrival
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.pool_memory import PoolMemory
from slipstream.kv_transfer.shared_memory.shm_transport import ShmTransport

SHAPE = (1, 8, 2, 1024)
ports = count(1)


class Listener:
    """`TransportEvents` of an end that takes offers and does nothing about them."""

    def __init__(self) -> None:
        self.arrivals: list[MessageArrival] = []

    def on_link(self, link: Link) -> None: ...
    def on_record(self, link: Link, record: bytes) -> None: ...
    def on_lost(self, link: Link, reason: str) -> None: ...

    def on_arrival(self, arrival: MessageArrival) -> None:
        self.arrivals.append(arrival)


def turn(transport: ShmTransport) -> bool:
    """What an agent's thread does in a round."""
    busy = transport.progress()
    return transport.work() or busy


def post_all(transport: ShmTransport, link: Link, num_in_flight: int) -> int:
    """Sends for as long as there is room; returns how many there were."""
    num_posted = 0
    while transport.can_send(num_in_flight + num_posted):
        transport.send(link, num_posted, MessagePages(0, np.arange(4, dtype=np.int64), range(2), 1), lambda error: None)
        num_posted += 1
    return num_posted


@pytest.fixture
def shared() -> Iterator[Callable[[], ShmTransport]]:
    opened: list[ShmTransport] = []

    def open_one() -> ShmTransport:
        memory = PoolMemory(int(np.prod(SHAPE)))
        pool = HostPagePool(np.frombuffer(memory.buffer, np.uint8).reshape(SHAPE), memory)
        address = TransferAddress("batches-of-messages", next(ports))
        opened.append(ShmTransport(address, pool, "token", FaultInjection(0)))
        return opened[-1]

    yield open_one
    for transport in opened:
        transport.close()


def test_a_shared_pool_offers_one_message_and_then_batches(shared: Callable[[], ShmTransport]) -> None:
    sender, receiver = shared(), shared()
    listener = Listener()
    sender.start(Listener())
    receiver.start(listener)
    link = sender.connect(receiver.address)
    batches, num_in_flight = [], 0
    for _ in range(5):
        batches.append(post_all(sender, link, num_in_flight))
        num_in_flight += batches[-1]
        turn(sender)
    assert batches == [1, 2, 4, 8, 8]
    while turn(receiver):
        turn(sender)
    assert len(listener.arrivals) == num_in_flight


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_copy_is_judged_when_its_sum_has_come_or_the_link_is_down(
    shared: Callable[[], ShmTransport], is_cut: bool
) -> None:
    sender, receiver = shared(), shared()
    listener = Listener()
    sender.start(Listener())
    receiver.start(listener)
    link = sender.connect(receiver.address)
    while turn(receiver) or turn(sender):
        continue
    pages = MessagePages(0, np.arange(4, dtype=np.int64), range(2), 1)
    sent: list[str | None] = []
    landed: list[tuple[str | None, bool]] = []
    sender.send(link, 7, pages, sent.append)
    turn(sender)
    turn(receiver)
    [arrival] = listener.arrivals
    receiver.receive(arrival, pages, lambda error, is_whole: landed.append((error, is_whole)))
    while turn(receiver):
        continue
    assert (landed, receiver.num_in_flight) == ([], 1)
    if is_cut:
        sender.disconnect(link)
    while turn(receiver) or turn(sender):
        continue
    assert landed == [("the link is down", False)] if is_cut else landed == [(None, True)]
    assert sent == ["the link is down"] if is_cut else sent == [None]
    assert receiver.num_in_flight == sender.num_in_flight == 0
