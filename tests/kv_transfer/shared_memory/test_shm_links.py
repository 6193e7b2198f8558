"""Links over shared memory: who is let in, what is handed over, and which transport a peer gets."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from slipstream.kv_transfer.api.page_transport import MessagePages
from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transfer_events import ReceiveFailed, SendFailed, Sent
from slipstream.kv_transfer.memory.host_pages import HostPages
from slipstream.kv_transfer.memory.huge_pages import Memory
from slipstream.kv_transfer.memory.page_pull import sum_pages
from slipstream.kv_transfer.shared_memory import shm_offers as shared_offers
from slipstream.kv_transfer.shared_memory.shm_link import fill_packets
from slipstream.kv_transfer.sockets.link_authentication import LinkAuthenticator
from tests.support.kv_transfer.ranks import PAGE_IDS, SHAPE, Rank, assert_transfers
from tests.support.kv_transfer.tickets import make_ticket
from tests.support.kv_transfer.waiting import EVENT_S, wait_until

NUM_MESSAGES = 5  # two of a layer each; then there is something in flight, and both layers of a slab are joined

Open = Callable[..., Rank]


@pytest.fixture
def open_rank() -> Iterator[Open]:
    ranks: list[Rank] = []

    def open_one(
        name: str, value: int = 0, token: str = "secret", is_shared: bool = True, shape: Any = SHAPE, **settings: Any
    ) -> Rank:
        config = TransferConfig(**{"slab_pages": 4, "staging_mib": 2, "lease_s": 10.0} | settings)
        ranks.append(Rank(PeerId(name, 1), value, config, is_shared=is_shared, shape=shape, token=token))
        return ranks[-1]

    yield open_one
    for rank in ranks:
        rank.agent.close()
    ranks.clear()
    gc.collect()  # tests that count open files shall not see these go


def num_views() -> int:
    """Mappings of other ranks' pools: those that cannot be written."""
    with open("/proc/self/maps") as maps:
        return sum("slipstream-kv-pool" in line and " r--s " in line for line in maps)


def num_open_files() -> int:
    """Without those of pools, which are open for as long as their ranks are referred to."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum("slipstream-kv-pool" not in link for link in links)


def test_peers_of_one_host_share_memory_and_leave_nothing_behind(open_rank: Open) -> None:
    destination = open_rank("decode")
    costs = []
    for value in range(1, 5):
        source = open_rank("prefill", value)
        assert_transfers(source, destination)
        assert num_views() == 1
        source.agent.close()
        assert source.memory is not None
        source.memory.close()
        wait_until(lambda: num_views() == 0)
        wait_until(lambda: destination.agent.stats().links_open == 0)
        costs.append(num_open_files())
    assert len(set(costs[1:])) == 1, costs


@pytest.mark.parametrize("private", ["source", "both"])
def test_a_source_with_private_memory_goes_by_ucx(open_rank: Open, private: str) -> None:
    source = open_rank("prefill", 7, is_shared=False)
    destination = open_rank("decode", is_shared=private == "source")
    assert_transfers(source, destination)
    assert num_views() == 0
    if private == "source":
        assert_transfers(destination, source)
        assert num_views() == 1


def test_a_peer_that_allows_only_ucx_gets_it(open_rank: Open) -> None:
    assert_transfers(open_rank("prefill", 7), open_rank("decode", transport="ucx"))
    assert num_views() == 0


def test_shared_memory_alone_refuses_a_peer_that_cannot(open_rank: Open) -> None:
    source, destination = open_rank("prefill", transport="shared_memory"), open_rank("decode", transport="ucx")
    source.agent.send(destination.ticket(), PAGE_IDS, len(PAGE_IDS))
    failed = source.next_event()
    assert isinstance(failed, SendFailed)
    assert "is not on this host" in failed.reason


def test_a_peer_whose_view_cannot_be_mapped_is_called_by_ucx_from_then_on(
    open_rank: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source, destination = open_rank("prefill", 7), open_rank("decode")

    def view_fails(file: int, num_bytes: int) -> Memory:
        raise OSError("no addresses left")

    monkeypatch.setattr("slipstream.kv_transfer.shared_memory.shm_link.view_of", view_fails)
    ticket = destination.ticket()
    source.agent.send(ticket, PAGE_IDS, len(PAGE_IDS))
    assert isinstance(source.next_event(), SendFailed)
    assert "takes no pages from shared memory" in caplog.text
    assert_transfers(source, destination)
    assert num_views() == 0


@pytest.mark.parametrize("way", ["auto", "ucx"])
def test_a_rank_with_another_token_is_turned_away(open_rank: Open, way: str) -> None:
    destination = open_rank("decode", transport=way)
    stranger = open_rank("prefill", token="guessed", transport=way)
    stranger.agent.send(destination.ticket(), PAGE_IDS, len(PAGE_IDS))
    failed = stranger.next_event()
    assert isinstance(failed, SendFailed)
    assert "is lost" in failed.reason
    assert_transfers(open_rank("prefill", 7, transport=way), destination)


def test_a_caller_that_guesses_the_name_is_turned_away(open_rank: Open, caplog: pytest.LogCaptureFixture) -> None:
    destination = open_rank("decode")
    name = LinkAuthenticator("secret").socket_name(destination.agent.address)
    for packet in (b"x", LinkAuthenticator("guessed").greet(destination.agent.address, bytes(32)), b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.settimeout(EVENT_S)
            stranger.connect("\0" + name)
            if packet:
                stranger.send(packet)
                assert stranger.recv(1) == b""
    assert "turned away" in caplog.text
    assert_transfers(open_rank("prefill", 7), destination)


def test_pages_that_change_after_they_were_offered_are_caught(open_rank: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader finds that went on too late: it must not take it for what was meant."""
    summed_up: list[int] = []  # pages of a layer

    def sum_up(pool: HostPages, several: Sequence[MessagePages]) -> list[int]:
        sums = sum_pages(pool, several)
        summed_up.extend(len(pages.page_ids) * pages.num_layers for pages in several)
        return sums

    monkeypatch.setattr(shared_offers, "sum_pages", sum_up)
    source, destination = open_rank("prefill", 7), open_rank("decode")
    ticket = destination.ticket()
    # Offered and summed up before anybody expects them, so they lie there unread.
    source.agent.send(ticket, PAGE_IDS, len(PAGE_IDS))
    wait_until(lambda: sum(summed_up) == SHAPE[0] * len(PAGE_IDS))
    source.pages[1, 5, 1, 100] ^= 1
    destination.agent.expect(ticket, PAGE_IDS, source.peer, 1)
    failed = destination.next_event()
    assert isinstance(failed, ReceiveFailed)
    assert "wrong checksum" in failed.reason
    assert source.next_event().key == ticket.key


def test_a_pool_of_another_shape_is_turned_away(open_rank: Open, caplog: pytest.LogCaptureFixture) -> None:
    destination = open_rank("decode", transport="shared_memory")
    other = open_rank("prefill", shape=(3, 8, 2, 8192), transport="shared_memory")
    ticket = make_ticket(
        0, destination=destination.peer, addresses=[destination.agent.address], num_layers=3, num_kv_heads=2,
        head_bytes=8192, num_pages=2,
    )  # fmt: skip
    other.agent.send(ticket, range(2), 2)
    assert isinstance(other.next_event(), SendFailed)
    assert "does not fit" in caplog.text


@pytest.mark.parametrize("way", ["shared_memory", "ucx"])
def test_running_out_of_file_descriptors_turns_callers_away_and_does_not_end_the_agent(
    open_rank: Open, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    destination = open_rank("decode", transport=way)
    address = destination.agent.address
    if way == "ucx":
        family, kind, target = socket.AF_INET, socket.SOCK_STREAM, (address.host, address.port)
    else:
        family, kind, target = (
            socket.AF_UNIX,
            socket.SOCK_SEQPACKET,
            "\0" + LinkAuthenticator("secret").socket_name(address),
        )
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(family, kind) as stranger, contextlib.ExitStack() as taken:
        stranger.settimeout(EVENT_S)
        resource.setrlimit(resource.RLIMIT_NOFILE, (stranger.fileno() + 20, limits[1]))
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        with contextlib.suppress(OSError):
            while True:
                taken.enter_context(open(os.devnull))
        stranger.connect(target)
        assert stranger.recv(1) == b""
    assert "turned away: Too many open files" in caplog.text
    assert_transfers(open_rank("prefill", 7, transport=way), destination)


@pytest.mark.parametrize("num_free", [0, 1, 2, 4, 7, 11, 20, 40])
@pytest.mark.parametrize("way", ["shared_memory", "ucx"])
def test_connecting_without_file_descriptors_fails_that_transfer_alone(
    open_rank: Open, way: str, num_free: int
) -> None:
    """With 11 of them left, UCX would end the process."""
    destination, source = open_rank("decode", transport=way), open_rank("prefill", 7, transport=way)
    ticket = destination.ticket()
    with few_files(num_free):
        destination.agent.expect(ticket, PAGE_IDS, source.peer, 1)
        source.agent.send(ticket, PAGE_IDS, len(PAGE_IDS))
        sent = source.next_event()
        destination.agent.cancel(ticket.key)
        received = destination.next_event()
    assert isinstance(sent, SendFailed | Sent)
    if num_free <= 1:
        assert isinstance(sent, SendFailed)
    assert received.key == sent.key == ticket.key
    assert_transfers(source, destination)


@contextlib.contextmanager
def few_files(num_free: int) -> Iterator[None]:
    """All but so many file descriptors are taken."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as taken:
        highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 64, limits[1]))
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        files = []
        with contextlib.suppress(OSError):
            while True:
                files.append(taken.enter_context(open(os.devnull)))
        for file in files[len(files) - num_free :]:
            file.close()
        yield


def test_a_greeting_is_for_one_listener_and_one_token_and_an_answer_for_one_greeting() -> None:
    here, there = TransferAddress("127.0.0.1", 1), TransferAddress("127.0.0.1", 2)
    greeter, other = LinkAuthenticator("secret"), LinkAuthenticator("guessed")
    greeting = greeter.greet(here, b"body")
    assert greeter.check_greeting(here, greeting) == b"body"
    assert greeter.check_greeting(there, greeting) is None
    assert other.check_greeting(here, greeting) is None
    assert greeter.check_greeting(here, greeting[:-1] + b"x") is None
    assert greeter.check_greeting(here, b"") is None
    answer = greeter.answer(greeting, b"")
    assert greeter.check_answer(greeting, answer) == b""
    assert greeter.check_answer(greeter.greet(here, b"other"), answer) is None
    assert greeter.check_answer(greeting, other.answer(greeting, b"")) is None


def test_offers_share_packets_as_far_as_they_fit() -> None:
    assert list(fill_packets([b"aa", b"bbb", b"cccc", b"d"], 5)) == [b"aabbb", b"ccccd"]
