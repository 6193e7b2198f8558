"""Links over torch.distributed: what is left of them, who is turned away, and what a broken rendezvous does."""

from __future__ import annotations

import dataclasses
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import numpy as np
import pytest

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import SendFailed
from slipstream.kv_transfer.api.transport import Link, MessageArrival, TransportError
from slipstream.kv_transfer.nccl import nccl_transport
from slipstream.kv_transfer.nccl.nccl_transport import NcclTransport
from slipstream.kv_transfer.nccl.pair_group import GroupSettings, PairGroup, Rendezvous
from slipstream.kv_transfer.sockets.link_authentication import LinkAuthenticator
from tests.support.kv_transfer.ranks import PAGE_IDS, Rank, assert_transfers, transfer
from tests.support.kv_transfer.waiting import EVENT_S, wait_until

GLOO = GroupSettings("gloo", "cpu", "127.0.0.1", 5.0)

Open = Callable[..., Rank]


@pytest.fixture
def open_rank() -> Iterator[Open]:
    ranks: list[Rank] = []

    def open_one(name: str, epoch: int = 1, value: int = 0, token: str = "") -> Rank:
        config = TransferConfig(transport="nccl", slab_pages=4, staging_mib=2, lease_s=5, peer_timeout_s=2)
        ranks.append(Rank(PeerId(name, epoch), value, config, is_shared=False, token=token))
        return ranks[-1]

    yield open_one
    for rank in ranks:
        rank.agent.close()


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def link_threads() -> int:
    return sum(thread.name.startswith("kv-link") for thread in threading.enumerate())


def test_peers_that_come_and_go_leave_neither_files_nor_threads(open_rank: Open) -> None:
    survivor = open_rank("decode")
    files_after_one = 0
    for epoch in range(1, 8):
        peer = open_rank("prefill", epoch, value=epoch)
        assert_transfers(peer, survivor)
        survivor.pages[:] = 255 - epoch
        assert_transfers(survivor, peer)
        peer.agent.close()
        wait_until(lambda: survivor.agent.stats().links_open == 0 and link_threads() == 0)
        files_after_one = files_after_one or num_open_files()
        wait_until(lambda: num_open_files() <= files_after_one)  # noqa: B023 - called at once


def test_a_peer_with_another_token_is_turned_away(open_rank: Open) -> None:
    source, destination = open_rank("prefill", value=7, token="a guess"), open_rank("decode", token="the secret")
    ticket = destination.ticket()
    source.agent.send(ticket, PAGE_IDS, len(PAGE_IDS))
    failed = source.next_event()
    assert isinstance(failed, SendFailed)
    assert failed.is_unreachable
    assert_transfers(open_rank("prefill-2", value=9, token="the secret"), destination)


def test_a_peer_whose_pages_are_on_gpus_is_turned_away(
    open_rank: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = open_rank("prefill", value=7), open_rank("decode")
    channel = source.agent._channel
    assert isinstance(channel, NcclTransport)
    monkeypatch.setattr(channel, "_settings", dataclasses.replace(channel._settings, backend="nccl"))
    sent, _ = source.agent.send(destination.ticket(), PAGE_IDS, len(PAGE_IDS)), source.next_event()
    assert sent
    assert "it moves pages with b'nccl', this rank with gloo" in caplog.text


def test_a_caller_that_does_not_keep_to_the_protocol_ends_its_own_link_alone(open_rank: Open) -> None:
    source, destination = open_rank("prefill", value=7), open_rank("decode")
    assert_transfers(source, destination)
    at = destination.agent.address
    for frame in (b"", b"\1", b"\2", b"\2" + bytes(8), b"\3", bytes(600)):
        with socket.create_connection((at.host, at.port), timeout=EVENT_S) as caller:
            for one in (LinkAuthenticator("").greet(at, b"gloo"), frame):
                caller.sendall(struct.pack("<H", len(one)) + one)
            caller.shutdown(socket.SHUT_WR)
            while caller.recv(1 << 16):
                continue
    wait_until(lambda: destination.agent.stats().links_open == 1)
    assert_transfers(source, destination)


def test_a_link_whose_ends_do_not_meet_fails_and_the_next_one_works(
    open_rank: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = open_rank("prefill", value=7), open_rank("decode")
    open_group = GroupSettings.open

    def at_the_wrong_store(settings: GroupSettings, rendezvous: Rendezvous, rank: int) -> object:
        wrong = dataclasses.replace(rendezvous, link=rendezvous.link + 100 * (1 + rank))
        return open_group(dataclasses.replace(settings, timeout_s=0.5), wrong, rank)

    monkeypatch.setattr(GroupSettings, "open", at_the_wrong_store)
    for event in transfer(source, destination):
        assert "torch.distributed group cannot be made" in str(event) or "the connection was closed" in str(event)
    monkeypatch.undo()
    wait_until(lambda: destination.agent.stats().links_open == 0)
    assert_transfers(source, destination)


class Ends:
    """The callbacks of a transport, as lists."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.arrivals: list[MessageArrival] = []

    def on_link(self, link: Link) -> None:
        self.links.append(link)

    def on_record(self, link: Link, record: bytes) -> None: ...

    def on_arrival(self, arrival: MessageArrival) -> None:
        self.arrivals.append(arrival)

    def on_lost(self, link: Link, reason: str) -> None: ...


def test_messages_are_received_in_the_order_that_the_receiver_chooses() -> None:
    ends, transports = (Ends(), Ends()), [NcclTransport(GLOO, "", 5.0) for _ in range(2)]
    for transport, end in zip(transports, ends, strict=True):
        transport.start(end)

    def run_until(condition: Callable[[], bool]) -> None:
        def turn() -> bool:
            for transport in transports:
                transport.progress()
            return condition()

        wait_until(turn)

    source, destination = transports
    link = source.connect(destination.address)
    done: list[str | None] = []
    run_until(lambda: bool(ends[1].links))
    for tag in range(5):
        source.send(link, tag, np.full(100, tag, np.uint8), done.append)
    run_until(lambda: len(ends[1].arrivals) == 5)
    buffers = {arrival.tag: np.zeros(200, np.uint8) for arrival in ends[1].arrivals}
    for arrival in reversed(ends[1].arrivals):
        destination.receive(arrival, buffers[arrival.tag], done.append)
    assert (source.num_in_flight, destination.num_in_flight) == (5, 5)
    run_until(lambda: len(done) == 10)
    assert done == [None] * 10
    assert all((buffer[:100] == tag).all() and not buffer[100:].any() for tag, buffer in buffers.items())
    destination.send(ends[1].links[0], 1, buffers[0], done.append)
    assert done[-1] == "messages go to the end that was called"
    source.disconnect(link)
    source.send(link, 9, buffers[0], done.append)
    assert done[-1] == "the link is down"
    for transport in transports:
        transport.close()
        assert transport.num_in_flight == 0


class SlowGroup:
    """A backend's group whose only operation ends when the group is aborted, as with NCCL."""

    def __init__(self) -> None:
        self.is_moving, self.is_aborted = threading.Event(), threading.Event()
        self.num_aborts = 0

    def send(self, tensors: list[object], rank: int, tag: int) -> SlowGroup:
        return self

    def wait(self) -> bool:
        self.is_moving.set()
        return self.is_aborted.wait(EVENT_S)

    def abort(self) -> None:
        self.num_aborts += 1
        self.is_aborted.set()


def test_a_link_that_ends_in_the_middle_of_a_message_aborts_its_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, posted, done = SlowGroup(), SimpleQueue[Callable[[], None]](), list[str | None]()
    monkeypatch.setattr(GroupSettings, "open", lambda *_: slow)
    pair = PairGroup(GLOO, Rendezvous(TransferAddress("127.0.0.1", 1), 1), 0, posted.put, done.append)
    pair.add(np.zeros(8, np.uint8), done.append)
    assert slow.is_moving.wait(EVENT_S)
    assert pair.end() == []
    posted.get(timeout=EVENT_S)()
    assert done == ["the link is down"]
    wait_until(lambda: not pair.is_running)
    assert slow.num_aborts == 1


def test_without_nccl_pages_in_device_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_transport.dist, "is_nccl_available", lambda: False)
    with pytest.raises(TransportError, match="this PyTorch has no NCCL"):
        NcclTransport(GroupSettings("nccl", "cuda:0", "127.0.0.1", 5.0), "", 5.0)


def test_a_host_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(TransportError, match="cannot listen on"):
        NcclTransport(dataclasses.replace(GLOO, host="192.0.2.1"), "", 5.0)


def test_a_ticket_that_leads_nowhere_fails_alone(open_rank: Open) -> None:
    source, destination = open_rank("prefill", value=7), open_rank("decode")
    for address in (TransferAddress("a..b", 1), TransferAddress("127.0.0.1", 0), TransferAddress("127.0.0.1", 1)):
        source.agent.send(destination.ticket()._replace(addresses=(address,)), PAGE_IDS, len(PAGE_IDS))
        assert isinstance(source.next_event(), SendFailed)
    assert_transfers(source, destination)
