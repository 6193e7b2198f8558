"""How the ranks of a group meet, and how rank 0 learns of their ends."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress, TransferKey
from slipstream.router.protocol.codec import WireError
from slipstream.router.protocol.messages import GpuUsage, RankUsage
from slipstream.workers.engine.plan.step_plan import SendProgress, StepPlan
from slipstream.workers.group.control_link import ControlLink, LinkClosed
from slipstream.workers.group.group_executor import GroupAddress, GroupRendezvous, RemoteRank
from slipstream.workers.group.group_messages import (
    CancelTransfer,
    Execute,
    GroupMessage,
    Join,
    RankFailed,
    RankReady,
    Shutdown,
)
from slipstream.workers.models.interface.step_arrays import SequenceSlice, StepArrays
from slipstream.workers.telemetry.worker_report import WorkerFailed
from slipstream.workers.transfers.group_transfers import RankOutcome

TIMEOUT_S = 20.0
KEY = TransferKey(PeerId("d", 1), 5)
READY = RankReady(TransferAddress("h", 1), 10)


def dial(address: GroupAddress, secret: str | None = None, rank: int = 1) -> ControlLink:
    link = ControlLink(socket.create_connection((address.host, address.control_port), TIMEOUT_S))
    link.send(Join(rank, address.secret if secret is None else secret, 4711))
    return link


@contextmanager
def linked() -> Iterator[tuple[RemoteRank, ControlLink, queue.SimpleQueue[object]]]:
    """Rank 0's view of rank 1, rank 1's end of the link, and what rank 0 hears of it."""
    rendezvous = GroupRendezvous("127.0.0.1", 2)
    end = dial(rendezvous.address)
    (rank,) = rendezvous.gather()
    heard: queue.SimpleQueue[object] = queue.SimpleQueue()
    rank.listen(lambda number, outcome: heard.put((number, outcome)), heard.put, heard.put)
    try:
        yield rank, end, heard
    finally:
        end.close()
        rank.close()


def test_only_who_knows_the_secret_is_admitted() -> None:
    rendezvous = GroupRendezvous("127.0.0.1", 3)
    ends = [dial(rendezvous.address, secret="guess"), dial(rendezvous.address, secret="vermutlich ä")]
    ends.append(dial(rendezvous.address, rank=2))
    garbage = socket.create_connection((rendezvous.address.host, rendezvous.address.control_port), TIMEOUT_S)
    garbage.sendall(b"\x03\x00\x00\x00abc")
    ends.append(dial(rendezvous.address, rank=1))
    ranks = rendezvous.gather()
    assert [rank.rank for rank in ranks] == [1, 2]
    for stranger in ends[:2]:
        with pytest.raises(LinkClosed):
            stranger.receive()
    assert garbage.recv(1) == b""
    garbage.close()
    for end in ends:
        end.close()
    for rank in ranks:
        rank.close()


def test_every_message_arrives_as_it_was_sent() -> None:
    arrays = StepArrays.build([SequenceSlice(4, (1, 2), b"\x01\0\0\0\x03\0\0\0", True)], page_tokens=4)
    plan = StepPlan(arrays, progress=(SendProgress(5, 1, "d", 2),))
    with linked() as (rank, end, heard):
        sent: list[GroupMessage] = [Execute.of(plan), CancelTransfer(KEY)]
        for message in sent:
            rank.link.send(message)
        assert [end.receive() for _ in sent] == sent
        end.send(READY)
        assert rank.wait_until_ready() == READY
        outcome = RankOutcome(KEY, None, 100, 0.5, 2)
        end.send(outcome)
        assert heard.get(timeout=TIMEOUT_S) == (1, outcome)
        usage = RankUsage(1, 2.5, 4096, (GpuUsage("GPU-7", 0.5),))
        end.send(usage)
        assert heard.get(timeout=TIMEOUT_S) == usage


def test_a_rank_that_gives_up_while_loading_says_why() -> None:
    with linked() as (rank, end, heard):
        end.send_last(RankFailed("no such model"))
        with pytest.raises(WorkerFailed, match="rank 1: no such model"):
            rank.wait_until_ready()
        assert heard.get(timeout=TIMEOUT_S) == "rank 1: no such model"


def test_a_rank_that_vanishes_is_noticed_at_once() -> None:
    with linked() as (_, end, heard):
        end.close()
        reason = heard.get(timeout=TIMEOUT_S)
        assert isinstance(reason, str)
        assert reason.startswith("rank 1 (pid 4711) is gone")


def test_an_orderly_end_is_no_failure() -> None:
    with linked() as (rank, end, heard):

        def answer() -> None:
            assert end.receive() == Shutdown()
            end.close()

        thread = threading.Thread(target=answer)
        thread.start()
        rank.close()
        thread.join(TIMEOUT_S)
        assert heard.empty()


def test_a_link_waits_for_the_hangup_of_the_other_end_without_reading() -> None:
    with linked() as (rank, end, _):
        hung_up = threading.Event()

        def wait() -> None:
            end.wait_for_hangup()
            hung_up.set()

        thread = threading.Thread(target=wait)
        thread.start()
        rank.link.send(CancelTransfer(KEY))
        assert end.receive() == CancelTransfer(KEY)
        assert not hung_up.is_set()
        rank.link.close()
        assert hung_up.wait(TIMEOUT_S)
        thread.join()


def test_bytes_that_are_no_message_are_an_error() -> None:
    here, there = (ControlLink(c) for c in tcp_pair())
    raw = there._socket
    for payload in (b"\x91\x7f", b"\x91\x80", b"\x91\x91\x01", b"\x90", b"\x01"):  # [127], [{}], [[1]], [], 1
        raw.sendall(len(payload).to_bytes(4, "little") + payload)
        with pytest.raises(WireError, match="no message of a group"):
            here.receive()
    raw.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(WireError, match="exceeds"):
        here.receive()
    here.close()
    there.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), TIMEOUT_S)
        return client, server.accept()[0]
