"""Agents over torch.distributed with gloo, in two processes: the logic that NCCL would run."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.kv_transfer.api.ticket import TransferAddress
from tests.support.kv_transfer.group_rank import GroupRank
from tests.support.kv_transfer.tickets import make_ticket, pool_bytes

NUM_TRANSFERS = 12


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
            rank.process.join(60)
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
