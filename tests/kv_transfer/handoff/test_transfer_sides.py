"""Both halves of a rank over a wire and under a clock of the test's own: several transfers on one link."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from slipstream.kv_transfer.api.page_layout import streams_between
from slipstream.kv_transfer.api.page_transport import Landed, MessagePages, PageTransport
from slipstream.kv_transfer.api.ticket import HandoffTicket, TransferAddress
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import Received, ReceiveFailed, SendFailed, Sent, TransferEvent
from slipstream.kv_transfer.api.transport import Done, MessageArrival
from slipstream.kv_transfer.handoff.control_records import decode_record
from slipstream.kv_transfer.handoff.message_plan import StreamPlan
from slipstream.kv_transfer.handoff.receive_side import ReceiveSide
from slipstream.kv_transfer.handoff.send_side import SendSide
from slipstream.kv_transfer.handoff.state_machines import MAX_WAIT_LEASES
from slipstream.kv_transfer.handoff.transfer_counters import Counters
from tests.support.kv_transfer.tickets import DECODE, PREFILL, make_ticket

LEASE_S = 30.0
PAGE_IDS = np.arange(100, dtype=np.int32)


class SlowWire:
    """One link between two ends, on which one message at a time travels, as long as the test likes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[TransferEvent] = []
        self._sent: deque[tuple[int, int, Done]] = deque()
        self._landed: Landed | None = None
        self._records: deque[tuple[str, bytes]] = deque()
        config = TransferConfig(lease_s=LEASE_S)
        source, destination = WireEnd(self, "source"), WireEnd(self, "destination")
        self.sends = SendSide(
            PageTransport.of(source, source), config, Counters(), self.events.append, lambda: self.now
        )
        self.receives = ReceiveSide(
            PageTransport.of(destination, destination), config, Counters(), self.events.append, lambda: self.now
        )

    def settle(self) -> None:
        """Records arrive, messages are posted as far as there is room."""
        is_busy = True
        while is_busy:
            is_busy = bool(self._records)
            while self._records:
                end, record = self._records.popleft()
                if end == "source":
                    self.receives.on_record(DECODE, "link", decode_record(record))
                else:
                    self.sends.on_record("link", decode_record(record))
            is_busy |= self.sends.pump()
            is_busy |= self.receives.pump()

    def deliver(self, after_s: float) -> None:
        """The message on the wire arrives and lands after so long; the leases are looked at meanwhile."""
        self.settle()
        for _ in range(10):
            self.now += after_s / 10
            self.tick()
        if self._sent:
            tag, num_bytes, done = self._sent.popleft()
            self.receives.on_arrival(DECODE, MessageArrival("link", tag, num_bytes, None))
            self.settle()
            assert self._landed is not None
            landed, self._landed = self._landed, None
            landed(None, True)
            done(None)
        self.settle()

    def tick(self) -> None:
        if self.sends.next_deadline() <= self.now:
            self.sends.tick(self.now)
        if self.receives.next_deadline() <= self.now:
            self.receives.tick(self.now)
        self.settle()


class WireEnd:
    """A `ControlChannel` and a `PageMover`."""

    address = TransferAddress("here", 1)
    num_in_flight = 0
    joins_layers = False

    def __init__(self, wire: SlowWire, name: str) -> None:
        self._wire, self._name = wire, name

    def connect(self, address: TransferAddress) -> str:
        self._wire.receives.on_link("link")
        return "link"

    def send_record(self, link: Any, record: bytes) -> None:
        self._wire._records.append((self._name, record))

    def payload_bytes(self, arrival: MessageArrival) -> int:
        return arrival.num_bytes

    def can_send(self, num_in_flight: int) -> bool:
        return num_in_flight == 0

    def can_receive(self, num_in_flight: int) -> bool:
        return True

    def send(self, link: Any, tag: int, pages: MessagePages, done: Done) -> None:
        self._wire._sent.append((tag, 64 * 4 * len(pages.page_ids), done))

    def receive(self, arrival: MessageArrival, pages: MessagePages, landed: Landed) -> None:
        self._wire._landed = landed

    def discard(self, arrival: MessageArrival) -> None: ...
    def disconnect(self, link: Any) -> None: ...


def begin(wire: SlowWire, transfer_id: int, *, is_ready: bool = True, is_sent: bool = True) -> HandoffTicket:
    ticket = make_ticket(transfer_id)
    plans = [StreamPlan(ticket, streams_between(1, 1, 4)[0])]
    wire.receives.begin(ticket, PREFILL, plans, PAGE_IDS[:10])
    if is_sent:
        wire.sends.begin(PREFILL, ticket, plans, PAGE_IDS[:10], 10 if is_ready else 0)
    wire.settle()
    return ticket


def test_what_waits_behind_others_on_a_slow_link_that_moves_is_not_given_up() -> None:
    wire = SlowWire()
    tickets = [begin(wire, transfer_id) for transfer_id in range(1, 4)]
    for _ in range(3 * 9):
        wire.deliver(LEASE_S / 2)  # so the last waits for four leases and a half for each before it
    ends = [(type(event), event.key) for event in wire.events]
    assert sorted(ends, key=str) == sorted(((end, t.key) for t in tickets for end in (Sent, Received)), key=str)


def test_on_a_link_that_does_not_move_nobody_waits_for_longer_than_a_lease() -> None:
    wire = SlowWire()
    tickets = [begin(wire, transfer_id) for transfer_id in range(1, 4)]
    wire.deliver(1.0)
    wire.now += LEASE_S
    wire.tick()
    failed = {event.key for event in wire.events if isinstance(event, ReceiveFailed)}
    assert failed == {ticket.key for ticket in tickets}
    assert all(isinstance(event, (ReceiveFailed, SendFailed)) for event in wire.events)


def test_what_has_nothing_to_send_is_given_up_however_busy_the_link_is() -> None:
    """Its pages are not computed: that others move is no sign of its life."""
    wire = SlowWire()
    stuck = begin(wire, 1, is_ready=False)
    others = [begin(wire, transfer_id) for transfer_id in range(2, 12)]
    for _ in range(30):
        wire.deliver(LEASE_S / 10)
    assert [event.key for event in wire.events if isinstance(event, SendFailed)] == [stuck.key]
    assert [event.key for event in wire.events if isinstance(event, ReceiveFailed)] == [stuck.key]
    assert {event.key for event in wire.events if isinstance(event, Received)} <= {ticket.key for ticket in others}


@pytest.mark.parametrize("lease_share", [0.1, 0.9])
def test_what_the_other_end_has_never_heard_of_is_given_up_in_the_end(lease_share: float) -> None:
    wire = SlowWire()
    lost = begin(wire, 1, is_sent=False)
    transfer_id = 1
    while not any(isinstance(event, ReceiveFailed) for event in wire.events):
        if not wire.sends.num_transfers:
            transfer_id += 1
            begin(wire, transfer_id)
        wire.deliver(LEASE_S * lease_share)
        assert wire.now < (MAX_WAIT_LEASES + 1) * LEASE_S
    assert wire.now >= MAX_WAIT_LEASES * LEASE_S
    assert [event.key for event in wire.events if isinstance(event, (ReceiveFailed, SendFailed))] == [lost.key]
