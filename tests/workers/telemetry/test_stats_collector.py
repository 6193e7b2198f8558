"""What a worker counts of its hand-offs."""

from __future__ import annotations

from slipstream.kv_transfer.api.ticket import PeerId, TransferKey
from slipstream.router.protocol.messages import RankUsage
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.telemetry.rank_usage import GroupUsage
from slipstream.workers.telemetry.stats_collector import StatsCollector
from slipstream.workers.transfers.group_transfers import GroupTransfers, RankOutcome
from tests.support.workers.engine_driver import make_limits
from tests.support.workers.fake_executor import FakeExecutor
from tests.workers.roles.test_roles import RecordingRank


def test_hand_offs_are_counted_by_how_they_ended() -> None:
    transfers = GroupTransfers([RecordingRank(), RecordingRank()])
    book = StatsCollector(NativeEngine(make_limits(), FakeExecutor(16, 4, 100)), transfers)
    whole, failed, cancelled, under_way = (TransferKey(PeerId("d", 1), number) for number in range(4))
    for key in (whole, failed, cancelled, under_way):
        transfers.sending(key)
    transfers.cancel(cancelled)
    for key, failures in ((whole, (None, None)), (failed, ("checksum", "cancelled")), (cancelled, (None, "cancelled"))):
        for rank, failure in enumerate(failures):
            num_bytes = 0 if failure else 100
            ended = transfers.ended(
                rank, RankOutcome(key, failure, num_bytes, 0.5 + rank, total_checksum_failures=rank)
            )
            if ended is not None:
                book.count_transfer(ended)
    stats = book.due(0.0)
    assert stats is not None
    counters = dict(stats.counters)
    assert {name: counters[name] for name in counters if name.startswith(("kv_", "leases"))} == {
        "kv_transfers": 1,
        "kv_transfers_failed": 1,
        "kv_transfers_cancelled": 1,
        "kv_transfer_bytes_sent": 300,
        "kv_transfer_seconds": 1.5 * 3,
        "kv_transfer_checksum_failures": 1,
        "leases_held": 1,
    }


def test_statistics_come_no_more_often_than_once_an_interval_and_only_when_changed() -> None:
    transfers = GroupTransfers([RecordingRank()])
    book = StatsCollector(NativeEngine(make_limits(), FakeExecutor(16, 4, 100)), transfers, interval_s=1.0)
    assert book.due(10.0) is not None
    assert book.due(10.5) is None
    assert book.next_due_s() == 11.0
    assert book.due(11.0) is None  # nothing has changed
    assert book.next_due_s() is None
    transfers.sending(TransferKey(PeerId("d", 1), 1))
    assert book.due(11.5) is not None
    book.start_over()
    assert book.due(11.6) is not None


def test_what_ranks_take_comes_with_other_changes_and_alone_every_ten_seconds() -> None:
    transfers, usage = GroupTransfers([RecordingRank()]), GroupUsage()
    book = StatsCollector(NativeEngine(make_limits(), FakeExecutor(16, 4, 100)), transfers, 1.0, usage=usage)
    usage.take(RankUsage(1, 7.0, 2000))
    usage.take(RankUsage(0, 1.0, 1000))
    first = book.due(10.0)
    assert first is not None
    assert [one.rank for one in first.usage] == [0, 1]
    usage.take(RankUsage(0, 2.0, 1000))
    assert book.due(11.0) is None  # nothing else has changed
    assert book.next_due_s() == 20.0
    transfers.sending(TransferKey(PeerId("d", 1), 1))
    second = book.due(12.0)
    assert second is not None
    assert second.usage[0].cpu_seconds == 2.0
    usage.take(RankUsage(0, 3.0, 1000))
    assert book.due(21.9) is None
    third = book.due(22.0)
    assert third is not None
    assert (third.usage[0].cpu_seconds, third.counters) == (3.0, second.counters)
