"""What links over real UCX cost and leave behind; agents in one process, so that it can be counted."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from itertools import count
from queue import SimpleQueue

import numpy as np
import pytest

from slipstream.kv_transfer import ucx
from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.config import TransferConfig
from slipstream.kv_transfer.events import Received, SendFailed, Sent, TransferEvent
from slipstream.kv_transfer.layout import PoolGeometry
from slipstream.kv_transfer.pool import HostPagePool
from slipstream.kv_transfer.ticket import HandoffTicket, PeerId
from tests.kv_transfer.tickets import make_ticket

GEOMETRY = PoolGeometry(num_layers=2, num_pages=32, num_heads=2, head_bytes=8192)
PAGE_IDS = range(16)
EVENT_S = 20.0

transfer_ids = count()


class Rank:
    """The only rank of a worker, with a pool full of one value."""

    def __init__(self, peer: PeerId, value: int, tls: str) -> None:
        self.peer = peer
        shape = (GEOMETRY.num_layers, GEOMETRY.num_pages, GEOMETRY.num_heads, GEOMETRY.head_bytes)
        self.pages = np.full(shape, value, np.uint8)
        self.events: SimpleQueue[TransferEvent] = SimpleQueue()
        self.agent = TransferAgent(
            HostPagePool(self.pages),
            rank=0,
            tp=1,
            peer=peer,
            config=TransferConfig(transport="ucx", slab_pages=4, staging_mib=2, tls=tls),
            on_event=self.events.put,
        )

    def ticket(self) -> HandoffTicket:
        return make_ticket(
            next(transfer_ids),
            destination=self.peer,
            addresses=[self.agent.address],
            num_pages=len(PAGE_IDS),
            slab_pages=4,
            num_layers=GEOMETRY.num_layers,
            num_kv_heads=GEOMETRY.num_heads,
            head_bytes=GEOMETRY.head_bytes,
        )


Open = Callable[..., Rank]


@pytest.fixture
def open_rank() -> Iterator[Open]:
    ranks: list[Rank] = []

    def open_one(name: str, epoch: int = 1, value: int = 0, tls: str = TransferConfig().tls) -> Rank:
        ranks.append(Rank(PeerId(name, epoch), value, tls))
        return ranks[-1]

    yield open_one
    for rank in ranks:
        rank.agent.close()


def assert_transfers(source: Rank, destination: Rank) -> None:
    destination.pages[:] = 0
    ticket = destination.ticket()
    destination.agent.expect(ticket, PAGE_IDS, source.peer, 1)
    source.agent.send(ticket, PAGE_IDS, len(PAGE_IDS))
    for rank, kind in ((destination, Received), (source, Sent)):
        event = rank.events.get(timeout=EVENT_S)
        assert isinstance(event, kind), event
    assert (destination.pages[:, PAGE_IDS] == source.pages[:, PAGE_IDS]).all()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + EVENT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def num_shm_segments() -> int:
    with open("/proc/self/maps") as maps:
        return sum("ucx_shm" in line for line in maps)


def test_peers_that_come_and_go_leave_nothing(open_rank: Open) -> None:
    survivor = open_rank("decode")
    costs = []
    for epoch in range(1, 16):
        peer = open_rank("prefill", epoch, value=epoch)
        assert_transfers(peer, survivor)
        survivor.pages[:] = 255 - epoch
        assert_transfers(survivor, peer)
        peer.agent.close()
        wait_until(lambda: survivor.agent.stats().links_open == 0)
        costs.append((num_open_files(), num_shm_segments()))
    assert len(set(costs[1:])) == 1, costs
    assert costs[-1][1] == 0


def test_strangers_on_the_port_do_no_harm(open_rank: Open) -> None:
    source, destination = open_rank("prefill", value=7), open_rank("decode")
    address = destination.agent.address
    generator = random.Random(0)
    silent = [socket.create_connection((address.host, address.port)) for _ in range(2 * ucx.MAX_CALLERS)]
    for size in (0, 1, 2, 9, 17, 147, 1000):
        with socket.create_connection((address.host, address.port)) as stranger:
            stranger.sendall(struct.pack("<H", size) + generator.randbytes(size))
            stranger.settimeout(EVENT_S)
            assert stranger.recv(1) == b""
    assert num_shm_segments() == 0
    assert_transfers(source, destination)
    for stranger in silent:
        stranger.close()


def test_a_link_goes_without_shared_memory_where_little_is_left(
    open_rank: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source, destination = open_rank("prefill", value=7), open_rank("decode")
    monkeypatch.setattr(ucx, "MIN_SHM_BYTES", 1 << 60)
    assert_transfers(source, destination)
    assert num_shm_segments() == 0
    assert "left in /dev/shm" in caplog.text


def test_shared_memory_alone_and_none_left_fails_the_send(open_rank: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    source, destination = open_rank("prefill", tls="posix,self"), open_rank("decode", tls="posix,self")
    assert_transfers(source, destination)
    monkeypatch.setattr(ucx, "MIN_SHM_BYTES", 1 << 60)
    other = open_rank("decode-2", tls="posix,self")
    ticket = other.ticket()
    source.agent.send(ticket, PAGE_IDS, len(PAGE_IDS))
    failed = source.events.get(timeout=EVENT_S)
    assert isinstance(failed, SendFailed)
    assert "TLS='posix,self' names no other way to a peer" in failed.reason
    assert_transfers(source, destination)


@pytest.mark.parametrize(
    ("tls", "without"),
    [
        ("posix,self,tcp", "self,tcp"),
        ("tcp,self", "tcp,self"),
        ("all", "^posix"),
        ("^cma", "^cma,posix"),
        ("^posix", "^posix"),
        ("sm,self", "self"),
    ],
)
def test_what_is_left_of_the_transports_without_shared_memory(tls: str, without: str) -> None:
    assert ucx._without_shm(tls) == without
