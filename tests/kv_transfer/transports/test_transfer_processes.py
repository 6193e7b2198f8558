"""Agents in separate processes, over shared memory, UCX and torch.distributed: pages, kills, stalls, restarts."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Literal

import numpy as np
import pytest

from slipstream.kv_transfer.api.page_layout import PoolGeometry
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import Received, ReceiveFailed, SendFailed, Sent
from tests.support.kv_transfer.tickets import make_ticket
from tests.support.kv_transfer.transfer_process import TransferProcess

GEOMETRY = PoolGeometry(num_layers=4, num_pages=512, num_heads=4, head_bytes=4096)  # 32 MiB
SLAB_PAGES = 8
NUM_PAGES = 64
LATE = "no progress"  # why a transfer fails whose lease has run out, and not because anybody has noticed anything
TRANSFER_BYTES = GEOMETRY.num_layers * NUM_PAGES * GEOMETRY.page_bytes

transfer_ids = count()

Start = Callable[..., TransferProcess]
Way = Literal["shared_memory", "ucx", "nccl"]


def settings(way: Way, **others: Any) -> TransferConfig:
    return TransferConfig(**{"transport": way, "slab_pages": SLAB_PAGES, "staging_mib": 8, "lease_s": 20.0} | others)


@pytest.fixture(scope="module", params=["shared_memory", "ucx", "nccl"])
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


@pytest.fixture(scope="module")
def destination(way: Way) -> Iterator[TransferProcess]:
    """Outlives all that the tests do to its peers."""
    process = TransferProcess(PeerId("decode", 1), GEOMETRY, config=settings(way))
    yield process
    stats = process.call("stats")
    assert (stats.leases_held, stats.sends_held, stats.messages_in_flight) == (0, 0, 0)
    process.close()


@pytest.fixture(scope="module")
def source(way: Way) -> Iterator[TransferProcess]:
    process = TransferProcess(PeerId("prefill", 1), GEOMETRY, config=settings(way))
    yield process
    stats = process.call("stats")
    assert (stats.leases_held, stats.sends_held, stats.messages_in_flight) == (0, 0, 0)
    process.close()


@pytest.fixture
def start(way: Way) -> Iterator[Start]:
    """Starts processes that end with the test."""
    started: list[TransferProcess] = []

    def start_one(
        name: str, epoch: int = 1, geometry: PoolGeometry = GEOMETRY, rank: int = 0, tp: int = 1, **others: Any
    ) -> TransferProcess:
        config = settings(way, **others)
        started.append(TransferProcess(PeerId(name, epoch), geometry, rank=rank, tp=tp, config=config))
        return started[-1]

    yield start_one
    for process in started:
        process.close()


def new_ticket(*destinations: TransferProcess, num_pages: int = NUM_PAGES, first_page: int = 0) -> HandoffTicket:
    geometry = destinations[0].geometry
    return make_ticket(
        next(transfer_ids),
        destination=destinations[0].peer,
        addresses=[process.address for process in destinations],
        first_page=first_page,
        num_pages=num_pages,
        slab_pages=SLAB_PAGES,
        num_layers=geometry.num_layers,
        num_kv_heads=geometry.num_heads * len(destinations),
        head_bytes=geometry.head_bytes,
    )


def some_pages(seed: int, num_pages: int = NUM_PAGES) -> list[int]:
    return random.Random(seed).sample(range(GEOMETRY.num_pages), num_pages)


def assert_transfers(source: TransferProcess, destination: TransferProcess) -> None:
    """A whole transfer between the two, bytes compared."""
    ticket = new_ticket(destination)
    source_ids, destination_ids = some_pages(2 * ticket.transfer_id), some_pages(2 * ticket.transfer_id + 1)
    destination.call("expect", ticket, destination_ids, source.peer, 1)
    source.call("send", ticket, source_ids, NUM_PAGES)
    received, sent = destination.next_event(), source.next_event()
    assert isinstance(received, Received), received
    assert isinstance(sent, Sent), sent
    assert received.key == sent.key == ticket.key
    assert received.num_bytes == sent.num_bytes == TRANSFER_BYTES
    assert (destination.call("pages", destination_ids) == source.initial_pages[:, source_ids]).all()


def begin_half(source: TransferProcess, destination: TransferProcess) -> HandoffTicket:
    """A transfer of which half the pages have arrived, and the other half is not computed yet."""
    before = destination.call("stats").bytes_received
    ticket = new_ticket(destination)
    destination.call("expect", ticket, some_pages(1), source.peer, 1)
    source.call("send", ticket, some_pages(2), NUM_PAGES // 2)
    assert destination.call("wait_for_bytes_received", before + TRANSFER_BYTES // 2, 20.0)
    return ticket


def test_pages_leave_while_later_layers_are_computed(source: TransferProcess, destination: TransferProcess) -> None:
    ticket = new_ticket(destination, first_page=3)
    source_ids, destination_ids = some_pages(3), some_pages(4)
    destination.call("expect", ticket, destination_ids, source.peer, 1)
    sent_before_the_end = source.call("compute_and_send", ticket, source_ids, 20)
    assert isinstance(destination.next_event(), Received)
    assert isinstance(source.next_event(), Sent)
    assert (destination.call("pages", destination_ids) == source.initial_pages[:, source_ids]).all()
    assert sent_before_the_end > 0


def test_tcp_alone_works_too(start: Start) -> None:
    source = start("tcp-prefill", transport="ucx", tls="tcp,self")
    destination = start("tcp-decode", transport="ucx", tls="tcp,self")
    assert_transfers(source, destination)


def test_two_source_ranks_fill_one_destination_rank(start: Start, destination: TransferProcess) -> None:
    half = PoolGeometry(GEOMETRY.num_layers, 256, GEOMETRY.num_heads // 2, GEOMETRY.head_bytes)
    ranks = [start("prefill-tp2", geometry=half, rank=rank, tp=2) for rank in range(2)]
    ticket = new_ticket(destination)
    source_ids = random.Random(5).sample(range(half.num_pages), NUM_PAGES)
    destination.call("expect", ticket, some_pages(6), ranks[0].peer, 2)
    for rank in ranks:
        rank.call("send", ticket, source_ids, 0)
    for layer in range(half.num_layers):
        for rank in ranks:
            rank.call("pages_ready", ticket.key, [layer], NUM_PAGES)
    received = destination.next_event()
    assert isinstance(received, Received), received
    for rank in ranks:
        sent = rank.next_event()
        assert isinstance(sent, Sent)
        assert sent.num_bytes == TRANSFER_BYTES // 2
    expected = np.concatenate([rank.initial_pages[:, source_ids] for rank in ranks], axis=2)
    assert (destination.call("pages", some_pages(6)) == expected).all()


def test_a_byte_flipped_on_the_way_is_caught(start: Start, destination: TransferProcess) -> None:
    drill = start("flipping-prefill", corrupt_every=20)
    before = destination.call("stats").checksum_failures
    ticket = new_ticket(destination)
    destination.call("expect", ticket, some_pages(1), drill.peer, 1)
    drill.call("send", ticket, some_pages(2), NUM_PAGES)
    failed = destination.next_event()
    assert isinstance(failed, ReceiveFailed)
    assert "wrong checksum" in failed.reason
    assert destination.call("stats").checksum_failures == before + 1
    drill.next_event()


def test_many_small_transfers_at_once(source: TransferProcess, destination: TransferProcess) -> None:
    tickets = [new_ticket(destination, num_pages=2) for _ in range(200)]
    source_ids, destination_ids = some_pages(7, 400), some_pages(8, 400)
    for i, ticket in enumerate(tickets):
        destination.call("expect", ticket, destination_ids[2 * i : 2 * i + 2], source.peer, 1)
        source.call("send", ticket, source_ids[2 * i : 2 * i + 2], 0)
    for ticket in tickets:
        source.call("pages_ready", ticket.key, range(GEOMETRY.num_layers), 2)
    for process, kind in ((source, Sent), (destination, Received)):
        events = [process.next_event() for _ in tickets]
        assert [event for event in events if not isinstance(event, kind)] == []
        assert {event.key for event in events} == {ticket.key for ticket in tickets}
    assert (destination.call("pages", destination_ids) == source.initial_pages[:, source_ids]).all()


@pytest.mark.parametrize("canceller", ["source", "destination"])
def test_cancel_in_mid_transfer(source: TransferProcess, destination: TransferProcess, canceller: str) -> None:
    ticket = begin_half(source, destination)
    here, there = (source, destination) if canceller == "source" else (destination, source)
    here.call("cancel", ticket.key)
    assert here.next_event().reason == "cancelled"
    assert there.next_event().reason == f"{here.peer.name} gave up: cancelled"
    source.call("pages_ready", ticket.key, range(GEOMETRY.num_layers), NUM_PAGES)
    assert_transfers(source, destination)


def test_cancel_while_messages_are_flowing(source: TransferProcess, destination: TransferProcess) -> None:
    for process in (source, destination) * 4:
        ticket = new_ticket(destination)
        destination.call("expect", ticket, some_pages(1), source.peer, 1)
        source.call("send", ticket, some_pages(2), NUM_PAGES)
        process.call("cancel", ticket.key)
        for end in (source, destination):
            assert end.next_event().key == ticket.key  # whichever way it went, once
    assert_transfers(source, destination)


@pytest.mark.parametrize("flowing", [False, True])
def test_a_sender_killed_in_mid_transfer_is_noticed_at_once(
    start: Start, source: TransferProcess, destination: TransferProcess, flowing: bool
) -> None:
    victim = start("doomed-prefill")
    if flowing:
        ticket = new_ticket(destination, num_pages=500)
        destination.call("expect", ticket, some_pages(1, 500), victim.peer, 1)
        before = destination.call("stats").bytes_received
        # All but the last page: it cannot complete, but is in full flow when the kill comes.
        victim.call("send", ticket, some_pages(2, 500), 499)
        assert destination.call("wait_for_bytes_received", before + 1, 20.0)
    else:
        ticket = begin_half(victim, destination)
    victim.kill()
    failed = destination.next_event()
    assert isinstance(failed, ReceiveFailed)
    assert failed.key == ticket.key
    assert LATE not in failed.reason
    assert_transfers(source, destination)
    if flowing:
        return
    reborn = start("doomed-prefill", epoch=2)
    assert_transfers(reborn, destination)


@pytest.mark.parametrize("flowing", [False, True])
def test_a_receiver_killed_in_mid_transfer_is_noticed_at_once(
    start: Start, source: TransferProcess, destination: TransferProcess, flowing: bool
) -> None:
    victim = start("doomed-decode")
    if flowing:
        ticket = new_ticket(victim, num_pages=500)
        victim.call("expect", ticket, some_pages(1, 500), source.peer, 1)
        source.call("send", ticket, some_pages(2, 500), 499)
        assert victim.call("wait_for_bytes_received", 1, 20.0)
    else:
        ticket = begin_half(source, victim)
    victim.kill()
    failed = source.next_event()
    assert isinstance(failed, SendFailed)
    assert failed.key == ticket.key
    assert LATE not in failed.reason
    assert_transfers(source, destination)

    # Nobody listens at that address any more.
    late = new_ticket(victim)
    source.call("send", late, some_pages(2), NUM_PAGES)
    failed = source.next_event()
    assert isinstance(failed, SendFailed)
    assert LATE not in failed.reason
    if flowing:
        return
    reborn = start("doomed-decode", epoch=2)
    assert_transfers(source, reborn)


def test_the_lease_on_pages_from_a_stopped_sender_expires(start: Start, source: TransferProcess) -> None:
    destination = start("impatient-decode", lease_s=3.0)
    victim = start("stopped-prefill")
    ticket = new_ticket(destination, num_pages=500)
    destination.call("expect", ticket, some_pages(1, 500), victim.peer, 1)
    victim.call("send", ticket, some_pages(2, 500), 499)
    assert destination.call("wait_for_bytes_received", 1, 20.0)
    victim.signal(signal.SIGSTOP)
    assert_transfers(source, destination)  # another source is not held up meanwhile
    assert destination.next_event() == ReceiveFailed(ticket.key, f"{LATE} for 3 s")
    assert_transfers(source, destination)
    victim.signal(signal.SIGCONT)
    assert isinstance(victim.next_event(), SendFailed)


def test_a_sender_gives_up_on_a_stopped_receiver(start: Start, destination: TransferProcess) -> None:
    source = start("impatient-prefill", lease_s=2.0, peer_timeout_s=4.0)  # until then it waits before it tells of it
    victim = start("stopped-decode")
    ticket = new_ticket(victim, num_pages=500)
    victim.call("expect", ticket, some_pages(1, 500), source.peer, 1)
    source.call("send", ticket, some_pages(2, 500), 500)
    victim.signal(signal.SIGSTOP)
    failed = source.next_event()
    assert isinstance(failed, SendFailed | Sent)  # if it was stopped too late
    assert source.call("stats").messages_in_flight == 0
    # And on one that was stopped before anybody connected.
    fresh = new_ticket(victim)
    source.call("peer_lost", victim.peer)
    source.call("send", fresh, some_pages(2), NUM_PAGES)
    assert source.next_event() == SendFailed(fresh.key, f"{LATE} for 2 s")
    assert_transfers(source, destination)


def test_a_new_epoch_of_the_same_process_voids_old_transfers(start: Start, source: TransferProcess) -> None:
    destination = start("reconnecting-decode")
    old = begin_half(source, destination)
    destination.peer = PeerId(destination.peer.name, 2)
    destination.call("begin_epoch", destination.peer)
    assert isinstance(destination.next_event(), ReceiveFailed)
    assert source.next_event().key == old.key
    assert_transfers(source, destination)


def test_an_idle_agent_costs_no_cpu(source: TransferProcess, destination: TransferProcess) -> None:
    assert_transfers(source, destination)
    with ThreadPoolExecutor() as pool:
        costs = list(pool.map(lambda process: process.call("idle_cpu_s", 1.5), (source, destination)))
    assert max(costs) < 0.05, costs
