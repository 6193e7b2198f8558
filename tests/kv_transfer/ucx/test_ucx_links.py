"""What links over real UCX cost and leave behind; agents in one process, so that it can be counted."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Literal

import pytest

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import Received, SendFailed, Sent
from slipstream.kv_transfer.sockets.link_authentication import LinkAuthenticator
from slipstream.kv_transfer.sockets.pending_handshakes import MAX_PENDING_HANDSHAKES
from slipstream.kv_transfer.ucx import ucx_context
from slipstream.kv_transfer.ucx.ucx_link import SEGMENT_BYTES, WINDOW_BYTES
from tests.support.kv_transfer.ranks import PAGE_IDS, SHAPE, Rank, assert_transfers
from tests.support.kv_transfer.waiting import EVENT_S, wait_until

WINDOW_MESSAGES = WINDOW_BYTES // SEGMENT_BYTES
MESSAGE_BYTES = SHAPE[2] * SHAPE[3]  # a page of a layer

Open = Callable[..., Rank]


@pytest.fixture
def open_rank() -> Iterator[Open]:
    ranks: list[Rank] = []

    def open_one(
        name: str,
        epoch: int = 1,
        value: int = 0,
        tls: str = TransferConfig().tls,
        way: Literal["ucx", "shared_memory"] = "ucx",
        shape: tuple[int, int, int, int] = SHAPE,
        slab_pages: int = 4,
    ) -> Rank:
        config = TransferConfig(transport=way, slab_pages=slab_pages, staging_mib=2, tls=tls, peer_timeout_s=2)
        ranks.append(Rank(PeerId(name, epoch), value, config, is_shared=way == "shared_memory", shape=shape))
        return ranks[-1]

    yield open_one
    for rank in ranks:
        rank.agent.close()


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


@pytest.mark.parametrize("tls", ["posix,self,tcp", "tcp"])
@pytest.mark.parametrize("head_bytes", [50, 100, 3000])
def test_messages_that_fit_into_one_segment_arrive(open_rank: Open, tls: str, head_bytes: int) -> None:
    shape = (2, 32, 2, head_bytes)
    source, destination = (open_rank(name, value=value, tls=tls, shape=shape) for name, value in (("p", 7), ("d", 0)))
    assert_transfers(source, destination)
    assert_transfers(destination, source)


def test_strangers_on_the_port_do_no_harm(open_rank: Open) -> None:
    source, destination = open_rank("prefill", value=7), open_rank("decode")
    address = destination.agent.address
    generator = random.Random(0)
    silent = [socket.create_connection((address.host, address.port)) for _ in range(2 * MAX_PENDING_HANDSHAKES)]
    for size in (0, 1, 2, 9, 17, 147, 1000):
        with socket.create_connection((address.host, address.port)) as stranger:
            stranger.sendall(struct.pack("<H", size) + generator.randbytes(size))
            stranger.settimeout(EVENT_S)
            assert stranger.recv(1) == b""
    assert num_shm_segments() == 0
    assert_transfers(source, destination)
    for stranger in silent:
        stranger.close()


def test_a_listener_that_never_answers_counts_as_unreachable(open_rank: Open) -> None:
    source, destination = open_rank("prefill", value=7), open_rank("decode")
    assert_transfers(source, destination)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = TransferAddress("127.0.0.1", silent.getsockname()[1])
        ticket = destination.ticket()._replace(addresses=(address,))
        source.agent.send(ticket, PAGE_IDS, len(PAGE_IDS))
        failed = source.events.get(timeout=EVENT_S)
    assert isinstance(failed, SendFailed)
    assert failed.reason.endswith("is lost: no answer within 2 s")
    assert failed.is_unreachable
    assert_transfers(source, destination)  # the link that it has is none of its business
    ticket = destination.ticket()
    source.agent.send(ticket, PAGE_IDS)
    source.agent.cancel(ticket.key)
    cancelled = source.events.get(timeout=EVENT_S)
    assert isinstance(cancelled, SendFailed)
    assert not cancelled.is_unreachable


def test_a_link_goes_without_shared_memory_where_little_is_left(
    open_rank: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source, destination = open_rank("prefill", value=7), open_rank("decode")
    monkeypatch.setattr(ucx_context, "MIN_SHM_BYTES", 1 << 60)
    assert_transfers(source, destination)
    assert num_shm_segments() == 0
    assert "left in /dev/shm" in caplog.text


def test_shared_memory_alone_and_none_left_fails_the_send(open_rank: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    source, destination = open_rank("prefill", tls="posix,self"), open_rank("decode", tls="posix,self")
    assert_transfers(source, destination)
    monkeypatch.setattr(ucx_context, "MIN_SHM_BYTES", 1 << 60)
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
    assert ucx_context._without_shm(tls) == without


@pytest.mark.parametrize("way", ["ucx", "shared_memory"])
def test_garbage_and_callers_that_dawdle_leave_other_links_alone(open_rank: Open, way: str) -> None:
    """More of them than there are places for callers, while pages go over a link that is there already."""
    source, destination = open_rank("prefill", value=7, way=way), open_rank("decode", way=way)
    assert_transfers(source, destination)
    address = destination.agent.address
    good = LinkAuthenticator("").greet(address, b"x" * 64)
    generator = random.Random(1)
    with contextlib.ExitStack() as callers:
        for number in range(3 * MAX_PENDING_HANDSHAKES):
            caller = callers.enter_context(call(address, way))
            with contextlib.suppress(OSError):  # turned away already
                match number % 4:
                    case 0:  # nothing, or garbage without an end
                        caller.send(generator.randbytes(generator.randrange(1, 3000)))
                    case 1:  # the beginning of a greeting
                        caller.send(framed(good, way)[: generator.randrange(1, len(good))])
                    case 2:  # a greeting of somebody with another token
                        caller.send(framed(LinkAuthenticator("guessed").greet(address, b"x" * 64), way))
                    case 3:  # a good greeting with a body that is none
                        caller.send(framed(good, way))
            if number % 16 == 0:
                assert_transfers(source, destination)
        assert_transfers(source, destination)
    wait_until(lambda: destination.agent.stats().links_open == 1)
    assert_transfers(open_rank("prefill-2", value=9, way=way), destination)


@pytest.mark.parametrize(("host", "port"), [("x" * 100, 1), ("a..b", 1), ("", 1), ("127.0.0.1", 0), ("127.0.0.1", -5)])
def test_a_ticket_that_leads_nowhere_fails_alone(open_rank: Open, host: str, port: int) -> None:
    source, destination = open_rank("prefill", value=7), open_rank("decode")
    ticket = destination.ticket()._replace(addresses=(TransferAddress(host, port),))
    source.agent.send(ticket, PAGE_IDS, len(PAGE_IDS))
    assert isinstance(source.events.get(timeout=EVENT_S), SendFailed)
    assert_transfers(source, destination)


def test_a_caller_with_the_token_and_a_false_address_ends_its_own_link_alone(open_rank: Open) -> None:
    source, destination = open_rank("prefill", value=7), open_rank("decode")
    assert_transfers(source, destination)
    at = destination.agent.address
    generator = random.Random(2)
    for body in (b"", b"\0", bytes(147), *(bytes((form,)) + generator.randbytes(200) for form in range(1, 16))):
        with call(at, "ucx") as caller:
            caller.sendall(framed(LinkAuthenticator("").greet(at, body), "ucx"))
            while caller.recv(1 << 16):  # an answer, perhaps, and the end
                continue
    wait_until(lambda: destination.agent.stats().links_open == 1)
    assert_transfers(source, destination)


def call(address: TransferAddress, way: str) -> socket.socket:
    if way == "ucx":
        return socket.create_connection((address.host, address.port), timeout=EVENT_S)
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.settimeout(EVENT_S)
    caller.connect("\0" + LinkAuthenticator("").socket_name(address))
    return caller


def framed(greeting: bytes, way: str) -> bytes:
    return struct.pack("<H", len(greeting)) + greeting if way == "ucx" else greeting


def test_messages_that_nobody_expects_yet_do_not_need_more_shared_memory(open_rank: Open) -> None:
    """UCX crashes when it wants more of it and there is none, so it has all from the start."""
    source, destination = open_rank("prefill", value=7, slab_pages=1), open_rank("decode", slab_pages=1)
    assert_transfers(source, destination)
    before, sent_before = num_shm_segments(), source.agent.stats().bytes_sent
    tickets = [destination.ticket() for _ in range(16)]  # more than the window of a link, in messages of one segment
    for ticket in tickets:
        source.agent.send(ticket, PAGE_IDS, len(PAGE_IDS))
    wait_until(lambda: source.agent.stats().bytes_sent - sent_before == WINDOW_MESSAGES * MESSAGE_BYTES)
    for ticket in tickets:
        destination.agent.expect(ticket, PAGE_IDS, source.peer, 1)
        for rank, kind in ((destination, Received), (source, Sent)):
            assert isinstance(rank.events.get(timeout=EVENT_S), kind)
    assert num_shm_segments() == before
