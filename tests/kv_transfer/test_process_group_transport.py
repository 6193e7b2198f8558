"""Agents over torch.distributed with gloo, in two processes: the logic that NCCL would run."""

from __future__ import annotations

import multiprocessing
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

import pytest

from slipstream.kv_transfer.ticket import TransferAddress
from tests.kv_transfer.tickets import DECODE, PREFILL, make_ticket, pool_bytes

NUM_TRANSFERS = 12


def _run_rank(rank: int, store: str, connection: Connection) -> None:
    # Imported here, in the child alone: torch.
    import torch.distributed as dist

    from slipstream.kv_transfer.agent import TransferAgent
    from slipstream.kv_transfer.config import TransferConfig
    from slipstream.kv_transfer.events import TransferEvent
    from slipstream.kv_transfer.pool import HostPagePool
    from slipstream.kv_transfer.process_group import ProcessGroupTransport

    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timeout)
    control, forth, back = (dist.new_group([0, 1], timeout=timeout) for _ in range(3))
    to, from_ = (forth, back) if rank == 0 else (back, forth)
    transport = ProcessGroupTransport(control, {1 - rank: to}, {1 - rank: from_})
    events: SimpleQueue[TransferEvent] = SimpleQueue()
    array = pool_bytes(rank)
    agent = TransferAgent(
        HostPagePool(array),
        rank=0,
        tp=1,
        peer=(PREFILL, DECODE)[rank],
        config=TransferConfig(slab_pages=4, staging_mib=1, lease_s=20.0),
        on_event=events.put,
        transport=transport,
    )
    connection.send(agent.address)
    while True:
        name, arguments = connection.recv()
        match name:
            case "expect":
                agent.expect(*arguments, PREFILL, 1)
                connection.send(None)
            case "send":
                agent.send(*arguments)
                connection.send(None)
            case "cancel":
                agent.cancel(*arguments)
                connection.send(None)
            case "next_event":
                connection.send(events.get(timeout=30))
            case "pages":
                connection.send(array[:, arguments[0]])
            case "close":
                agent.close()
                connection.send(agent.stats())
                return


class GroupRank:
    def __init__(self, rank: int, store: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_run_rank, args=(rank, str(store), theirs))
        self.process.start()
        theirs.close()

    def answer(self) -> object:
        assert self._connection.poll(60), "no answer"
        return self._connection.recv()

    def call(self, name: str, *arguments: object) -> object:
        self._connection.send((name, arguments))
        return self.answer()

    def post(self, name: str) -> None:
        self._connection.send((name, ()))


def test_hand_offs_over_a_process_group(tmp_path: Path) -> None:
    source, destination = ranks = [GroupRank(rank, tmp_path / "store") for rank in range(2)]
    try:
        assert [rank.answer() for rank in ranks] == [TransferAddress("rank", 0), TransferAddress("rank", 1)]
        tickets = [make_ticket(i, addresses=[TransferAddress("rank", 1)], num_pages=5) for i in range(NUM_TRANSFERS)]
        for i, ticket in enumerate(tickets):
            destination.call("expect", ticket, list(range(5 * i, 5 * i + 5)))
        for i, ticket in enumerate(tickets):
            source.call("send", ticket, list(range(64 - 5 * i - 5, 64 - 5 * i)), 5)
        for rank, kind in ((source, "Sent"), (destination, "Received")):
            events = [rank.call("next_event") for _ in tickets]
            assert [type(event).__name__ for event in events] == [kind] * NUM_TRANSFERS
        for i in range(NUM_TRANSFERS):
            sent = pool_bytes(0)[:, 64 - 5 * i - 5 : 64 - 5 * i]
            assert (destination.call("pages", list(range(5 * i, 5 * i + 5))) == sent).all()

        cancelled = make_ticket(99, addresses=[TransferAddress("rank", 1)])
        destination.call("expect", cancelled, list(range(10)))
        source.call("send", cancelled, list(range(10)), 4)
        source.call("cancel", cancelled.key)
        assert "cancelled" in str(source.call("next_event"))
        assert "gave up: cancelled" in str(destination.call("next_event"))

        for rank in ranks:
            rank.post("close")
        for rank in ranks:
            stats = rank.answer()
            assert stats.messages_in_flight == stats.leases_held == stats.sends_held == 0  # type: ignore[attr-defined]
            rank.process.join(15)
            assert rank.process.exitcode == 0
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.join()


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_rank_fails_its_transfers(tmp_path: Path, victim: int) -> None:
    ranks = [GroupRank(rank, tmp_path / "store") for rank in range(2)]
    try:
        for rank in ranks:
            rank.answer()
        ticket = make_ticket(1, addresses=[TransferAddress("rank", 1)])
        ranks[1].call("expect", ticket, list(range(10)))
        other = make_ticket(2, addresses=[TransferAddress("rank", 1)], num_pages=4)
        ranks[1].call("expect", other, list(range(20, 24)))
        ranks[0].call("send", ticket, list(range(10)), 4)
        ranks[0].call("send", other, list(range(20, 24)), 4)
        for rank in ranks:
            assert "Failed" not in str(rank.call("next_event"))  # the one that is whole
        ranks[victim].process.kill()
        event = ranks[1 - victim].call("next_event")
        assert type(event).__name__ == ("ReceiveFailed" if victim == 0 else "SendFailed")
        assert "is gone" in str(event)
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.join()
