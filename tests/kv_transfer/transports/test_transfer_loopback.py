"""Whole agents over the loopback transport: re-layout, faults, and who is told what."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from queue import Empty, SimpleQueue

import numpy as np
import pytest

from slipstream.kv_transfer.agent import AgentClosedError, TransferAgent
from slipstream.kv_transfer.api.page_layout import PageIds
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import Received, ReceiveFailed, SendFailed, Sent, TransferEvent
from slipstream.kv_transfer.api.transport import Buffer
from slipstream.kv_transfer.handoff.message_plan import MessageTag, TicketError
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.transports.staging import StagingError
from tests.support.kv_transfer.loopback import LoopbackNetwork
from tests.support.kv_transfer.tickets import DECODE, PREFILL, make_ticket, pool_bytes

HEADS = 8


class Rank:
    """An agent with its pool and the events it has told."""

    def __init__(
        self,
        network: LoopbackNetwork,
        peer: PeerId,
        rank: int,
        tp: int,
        config: TransferConfig,
        pool_type: type[HostPagePool] = HostPagePool,
    ) -> None:
        self.array = pool_bytes(zlib.crc32(peer.name.encode()) + rank, num_heads=HEADS // tp)
        self.events: SimpleQueue[TransferEvent] = SimpleQueue()
        self.agent = TransferAgent(
            pool_type(self.array),
            rank=rank,
            tp=tp,
            peer=peer,
            config=config,
            on_event=self.events.put,
            transport=network.open(),
        )

    def next_event(self) -> TransferEvent:
        return self.events.get(timeout=10)

    def assert_quiet(self) -> None:
        with pytest.raises(Empty):
            self.events.get(timeout=0.05)


class Pair:
    """A source and a destination group on one network."""

    def __init__(self, source_tp: int = 1, destination_tp: int = 1, **settings: float) -> None:
        self.network = LoopbackNetwork()
        config = TransferConfig(slab_pages=4, staging_mib=1, **settings)  # type: ignore[arg-type]
        self.sources = [Rank(self.network, PREFILL, rank, source_tp, config) for rank in range(source_tp)]
        self.destinations = [Rank(self.network, DECODE, r, destination_tp, config) for r in range(destination_tp)]

    @property
    def ranks(self) -> list[Rank]:
        return self.sources + self.destinations

    def ticket(self, transfer_id: int = 1, **fields: int) -> HandoffTicket:
        addresses = [rank.agent.address for rank in self.destinations]
        return make_ticket(transfer_id, addresses=addresses, num_kv_heads=HEADS, **fields)  # type: ignore[arg-type]

    def expect(self, ticket: HandoffTicket, page_ids: list[int]) -> None:
        for rank in self.destinations:
            rank.agent.expect(ticket, page_ids, PREFILL, len(self.sources))

    def send(self, ticket: HandoffTicket, page_ids: list[int], num_ready_pages: int = 64) -> None:
        for rank in self.sources:
            rank.agent.send(ticket, page_ids, num_ready_pages)

    def assert_same_pages(self, source_ids: list[int], destination_ids: list[int]) -> None:
        ours = np.concatenate([rank.array for rank in self.sources], axis=2)
        theirs = np.concatenate([rank.array for rank in self.destinations], axis=2)
        assert (ours[:, source_ids] == theirs[:, destination_ids]).all()

    def close(self) -> None:
        for rank in self.ranks:
            rank.agent.close()
            stats = rank.agent.stats()
            assert (stats.leases_held, stats.sends_held, stats.messages_in_flight) == (0, 0, 0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def some_pages(seed: int, count: int = 10) -> list[int]:
    return random.Random(seed).sample(range(64), count)


@pytest.mark.parametrize(("source_tp", "destination_tp"), [(1, 1), (2, 1), (1, 2), (4, 2), (2, 8)])
def test_pages_land_whatever_the_degrees(source_tp: int, destination_tp: int) -> None:
    pair = Pair(source_tp, destination_tp)
    before = [rank.array.copy() for rank in pair.destinations]
    ticket = pair.ticket(first_page=3, num_pages=10)
    source_ids, destination_ids = some_pages(1), some_pages(2)
    pair.expect(ticket, destination_ids)
    pair.send(ticket, source_ids)
    num_bytes = 3 * 10 * HEADS * 64
    for rank in pair.sources:
        event = rank.next_event()
        assert isinstance(event, Sent)
        assert event.num_bytes == num_bytes // source_tp
    for rank in pair.destinations:
        event = rank.next_event()
        assert isinstance(event, Received)
        assert event.num_bytes == num_bytes // destination_tp
    pair.assert_same_pages(source_ids, destination_ids)
    others = [page for page in range(64) if page not in destination_ids]
    for rank, old in zip(pair.destinations, before, strict=True):
        assert (rank.array[:, others] == old[:, others]).all()
    pair.close()


def test_nothing_is_sent_before_its_pages_are_ready(pair: Pair) -> None:
    seen: list[MessageTag] = []

    def spy(tag: int, buffer: object) -> None:
        seen.append(MessageTag.unpack(tag))

    pair.network.faults.corrupt = spy
    ticket = pair.ticket(num_pages=8)
    pair.expect(ticket, some_pages(2, 8))
    pair.send(ticket, some_pages(1, 8), num_ready_pages=0)
    sender = pair.sources[0].agent
    sender.pages_ready(ticket.key, 0, 7)
    sender.pages_ready(ticket.key, 2, 8)
    while len(seen) < 3:
        pair.sources[0].assert_quiet()
    pair.sources[0].assert_quiet()
    assert {divmod(tag.index, 3) for tag in seen} == {(0, 0), (0, 2), (1, 2)}  # (slab, layer)
    for layer in (0, 1):
        sender.pages_ready(ticket.key, layer, 8)
    assert isinstance(pair.destinations[0].next_event(), Received)
    assert isinstance(pair.sources[0].next_event(), Sent)
    assert len(seen) == 6


def test_messages_that_come_before_the_reservation_is_known_are_kept(pair: Pair) -> None:
    ticket = pair.ticket()
    pair.send(ticket, some_pages(1))
    pair.sources[0].assert_quiet()
    pair.expect(ticket, some_pages(2))
    assert isinstance(pair.destinations[0].next_event(), Received)
    assert isinstance(pair.sources[0].next_event(), Sent)
    pair.assert_same_pages(some_pages(1), some_pages(2))


def test_a_flipped_bit_is_caught_and_the_sender_is_told(pair: Pair) -> None:
    def flip(tag: int, buffer: np.ndarray) -> None:
        if MessageTag.unpack(tag).index == 4:
            buffer[100] ^= 1

    pair.network.faults.corrupt = flip
    ticket = pair.ticket()
    pair.expect(ticket, some_pages(2))
    pair.send(ticket, some_pages(1), num_ready_pages=9)  # the last slab is held back: the sender cannot be done
    event = pair.destinations[0].next_event()
    assert event == ReceiveFailed(ticket.key, "message 4 of source rank 0 has a wrong checksum")
    told = pair.sources[0].next_event()
    assert isinstance(told, SendFailed)
    assert "wrong checksum" in told.reason
    assert pair.destinations[0].agent.stats().checksum_failures == 1


def test_the_fire_drill_corrupts_every_nth_message() -> None:
    pair = Pair(corrupt_every=7)
    for transfer_id, expected in enumerate([Received, Received, ReceiveFailed]):  # three messages each
        ticket = pair.ticket(transfer_id, num_pages=4)
        ids = some_pages(transfer_id, 4)
        pair.expect(ticket, ids)
        pair.send(ticket, ids)
        assert isinstance(pair.destinations[0].next_event(), expected)
        pair.sources[0].next_event()
    pair.close()


def test_a_message_that_never_comes_lets_the_lease_expire() -> None:
    pair = Pair(lease_s=2.0)  # in which the sender is done
    pair.network.faults.drop = lambda tag: MessageTag.unpack(tag).index == 5
    ticket = pair.ticket()
    pair.expect(ticket, some_pages(2))
    pair.send(ticket, some_pages(1))
    assert pair.destinations[0].next_event() == ReceiveFailed(ticket.key, "no progress for 2 s")
    assert isinstance(pair.sources[0].next_event(), Sent)  # it was let go of; only the receiver can know
    pair.close()


def test_a_destination_that_takes_nothing_does_not_hold_the_sender_for_ever() -> None:
    pair = Pair(lease_s=0.3)
    pair.network.faults.hold = lambda tag: True
    ticket = pair.ticket()
    pair.send(ticket, some_pages(1))
    assert pair.sources[0].next_event() == SendFailed(ticket.key, "no progress for 0.3 s")
    assert pair.sources[0].agent.stats().messages_in_flight == 0
    pair.close()


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_cancel_reaches_the_other_side(pair: Pair, side: str) -> None:
    ticket = pair.ticket()
    pair.expect(ticket, some_pages(2))
    pair.send(ticket, some_pages(1), num_ready_pages=4)
    here, there = pair.sources[0], pair.destinations[0]
    if side == "destination":
        here, there = there, here
    while pair.destinations[0].agent.stats().bytes_received == 0:
        pair.destinations[0].assert_quiet()
    here.agent.cancel(ticket.key)
    assert here.next_event().reason == "cancelled"  # type: ignore[union-attr]
    assert there.next_event().reason.endswith("gave up: cancelled")  # type: ignore[union-attr]
    pair.sources[0].agent.pages_ready(ticket.key, 0, 10)
    pair.sources[0].assert_quiet()
    pair.destinations[0].assert_quiet()


def test_a_transfer_that_was_given_up_before_the_reservation_was_known_fails_it(pair: Pair) -> None:
    ticket = pair.ticket()
    pair.send(ticket, some_pages(1), num_ready_pages=4)
    pair.sources[0].assert_quiet()
    pair.sources[0].agent.cancel(ticket.key)
    pair.sources[0].next_event()
    pair.destinations[0].assert_quiet()
    pair.expect(ticket, some_pages(2))
    event = pair.destinations[0].next_event()
    assert isinstance(event, ReceiveFailed)
    assert event.reason.endswith("gave up: cancelled")


def test_a_lost_peer_fails_its_transfers_on_both_sides(pair: Pair) -> None:
    first, second = pair.ticket(1), pair.ticket(2)
    pair.expect(first, some_pages(2))
    pair.destinations[0].agent.peer_lost(PREFILL)  # it never connected
    assert pair.destinations[0].next_event() == ReceiveFailed(first.key, "prefill-0 is lost")
    pair.send(second, some_pages(1), num_ready_pages=0)
    pair.sources[0].agent.peer_lost(DECODE)
    assert pair.sources[0].next_event() == SendFailed(second.key, "decode-0 is lost")


def test_a_sender_that_goes_away_fails_the_reservation(pair: Pair) -> None:
    ticket = pair.ticket()
    pair.expect(ticket, some_pages(2))
    pair.send(ticket, some_pages(1), num_ready_pages=4)
    while pair.destinations[0].agent.stats().bytes_received == 0:
        pair.destinations[0].assert_quiet()
    pair.sources[0].agent.close()
    assert pair.sources[0].next_event() == SendFailed(ticket.key, "the transfer agent is closed")
    event = pair.destinations[0].next_event()
    assert isinstance(event, ReceiveFailed)
    assert event.reason.startswith("prefill-0 is lost")


class BrokenPool(HostPagePool):
    """Like device memory after a fault."""

    def gather_summed(self, layer: int, page_ids: PageIds, heads: range, out: Buffer, seed: int) -> int:
        raise RuntimeError("the device is gone")

    def scatter_summed(self, layer: int, page_ids: PageIds, heads: range, src: Buffer, seed: int) -> int:
        raise RuntimeError("the device is gone")


@pytest.mark.parametrize("broken", ["source", "destination"])
def test_an_agent_whose_pool_breaks_ends_its_transfers(broken: str) -> None:
    pair = Pair()
    ranks, peer = (pair.sources, PREFILL) if broken == "source" else (pair.destinations, DECODE)
    ranks[0].agent.close()
    config = TransferConfig(slab_pages=4, staging_mib=1)
    rank = ranks[0] = Rank(pair.network, peer, 0, 1, config, BrokenPool)
    ticket, unrelated = pair.ticket(1, num_pages=10), pair.ticket(2, num_pages=10)
    for number, one in enumerate((unrelated, ticket)):
        pair.expect(one, some_pages(2))
        pair.send(one, some_pages(1), 64 * number)
    ended = [rank.next_event() for _ in range(2)]
    assert {event.key for event in ended} == {ticket.key, unrelated.key}
    kind = SendFailed if broken == "source" else ReceiveFailed
    assert all(isinstance(event, kind) and "the device is gone" in event.reason for event in ended)
    with pytest.raises(AgentClosedError):
        rank.agent.send(pair.ticket(3, num_pages=10), some_pages(1))
    rank.assert_quiet()
    pair.close()


def test_nobody_at_the_address_fails_the_send(pair: Pair) -> None:
    ticket = pair.ticket()
    pair.destinations[0].agent.close()
    pair.send(ticket, some_pages(1))
    event = pair.sources[0].next_event()
    assert isinstance(event, SendFailed)
    assert "is lost: no listener at this address" in event.reason


def test_a_new_epoch_voids_old_tickets_and_serves_new_ones(pair: Pair) -> None:
    old = pair.ticket(1)
    destination = pair.destinations[0]
    pair.expect(old, some_pages(2))
    pair.send(old, some_pages(1), num_ready_pages=4)
    reborn = PeerId(DECODE.name, 2)
    destination.agent.begin_epoch(reborn)
    assert destination.next_event() == ReceiveFailed(old.key, "decode-0 begins epoch 2")
    assert isinstance(pair.sources[0].next_event(), SendFailed)
    with pytest.raises(TicketError, match="the ticket is for"):
        pair.expect(old, some_pages(2))

    # A sender with an old ticket is refused, also when it connects only now.
    pair.send(pair.ticket(2), some_pages(1))
    refused = pair.sources[0].next_event()
    assert isinstance(refused, SendFailed)
    assert "refuses: this is decode-0 of epoch 2" in refused.reason

    new = make_ticket(1, destination=reborn, addresses=[destination.agent.address], num_kv_heads=HEADS)
    pair.expect(new, some_pages(3))
    pair.send(new, some_pages(1))
    event = destination.next_event()
    assert isinstance(event, Received)
    assert event.key == new.key
    pair.assert_same_pages(some_pages(1), some_pages(3))


def test_a_source_of_a_newer_epoch_ends_the_transfers_of_the_older_one(pair: Pair) -> None:
    ticket = pair.ticket(1)
    pair.expect(ticket, some_pages(2))
    pair.send(ticket, some_pages(1), num_ready_pages=4)
    while pair.destinations[0].agent.stats().bytes_received == 0:
        pair.destinations[0].assert_quiet()
    reborn = Rank(pair.network, PeerId(PREFILL.name, 2), 0, 1, TransferConfig(slab_pages=4, staging_mib=1))
    other = pair.ticket(2)
    pair.destinations[0].agent.expect(other, some_pages(3), PeerId(PREFILL.name, 2), 1)
    reborn.agent.send(other, some_pages(1), 64)
    events = [pair.destinations[0].next_event() for _ in range(2)]
    assert isinstance(events[0], ReceiveFailed)
    assert events[0].reason == "prefill-0 is lost: prefill-0 has restarted"
    assert isinstance(events[1], Received)
    reborn.agent.close()


def test_a_stalled_destination_does_not_hold_up_another() -> None:
    pair = Pair()
    other = Rank(pair.network, PeerId("decode-1", 1), 0, 1, TransferConfig(slab_pages=4, staging_mib=1))
    pair.network.faults.hold = lambda tag: MessageTag.unpack(tag).transfer_id < 100
    for transfer_id in range(40):
        pair.send(pair.ticket(transfer_id, num_pages=60), some_pages(1, 60))
    ticket = make_ticket(100, destination=PeerId("decode-1", 1), addresses=[other.agent.address], num_kv_heads=HEADS)
    other.agent.expect(ticket, some_pages(2), PREFILL, 1)
    pair.send(ticket, some_pages(1))
    assert isinstance(other.next_event(), Received)
    pair.close()
    other.agent.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_mischief_ends_every_transfer_exactly_once(seed: int) -> None:
    """Messages are held, dropped and broken at random, transfers cancelled at random; then the leases decide."""
    chance = random.Random(seed)
    pair = Pair(2, 1, lease_s=0.5)
    mischief = {(chance.randrange(30), chance.randrange(9)): chance.choice(["hold", "drop", "break"]) for _ in range(8)}

    def struck(tag: int, kind: str) -> bool:
        unpacked = MessageTag.unpack(tag)
        return mischief.get((unpacked.transfer_id, unpacked.index)) == kind

    pair.network.faults.hold = lambda tag: struck(tag, "hold")
    pair.network.faults.drop = lambda tag: struck(tag, "drop")
    pair.network.faults.corrupt = lambda tag, buffer: buffer.fill(0) if struck(tag, "break") else None
    tickets = [pair.ticket(transfer_id) for transfer_id in range(30)]
    for ticket in tickets:
        pair.expect(ticket, some_pages(ticket.transfer_id))
        pair.send(ticket, some_pages(100 + ticket.transfer_id))
        if chance.random() < 0.2:
            chance.choice(pair.ranks).agent.cancel(ticket.key)
    for rank in pair.ranks:
        keys = [rank.next_event().key for _ in tickets]
        assert sorted(key.transfer_id for key in keys) == list(range(30))
    for rank in pair.ranks:
        rank.assert_quiet()
    pair.close()


@pytest.mark.parametrize(
    ("fields", "page_ids", "complaint"),
    [
        ({"num_layers": 4}, range(10), "num_layers of the ticket is 4, this rank has 3"),
        ({"head_bytes": 32}, range(10), "head_bytes of the ticket is 32, this rank has 64"),
        ({"slab_pages": 5}, range(10), "slabs of 5 pages do not fit this rank's staging buffers"),
        ({}, range(9), "the ticket wants 10 pages"),
        ({}, range(60, 70), r"page ids must be in 0..63, got 60..69"),
        ({}, [1] * 10, "two of the ticket's pages would land in the same page"),
        ({"transfer_id": 2**40}, range(10), "transfer id 1099511627776 does not fit"),
    ],
)
def test_tickets_that_do_not_fit_are_refused(
    pair: Pair, fields: dict[str, int], page_ids: range, complaint: str
) -> None:
    with pytest.raises(TicketError, match=complaint):
        pair.expect(pair.ticket(**fields), list(page_ids))


def test_a_closed_agent_says_so(pair: Pair) -> None:
    agent = pair.sources[0].agent
    agent.close()
    agent.close()
    with pytest.raises(AgentClosedError):
        agent.send(pair.ticket(), some_pages(1))
    agent.pages_ready(pair.ticket().key, 0, 1)
    agent.cancel(pair.ticket().key)


def test_staging_too_small_for_a_slab_is_refused_at_construction() -> None:
    with pytest.raises(StagingError, match="raise staging_mib or lower slab_pages"):
        Rank(LoopbackNetwork(), PREFILL, 0, 1, TransferConfig(slab_pages=2000, staging_mib=1))
