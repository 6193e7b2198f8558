"""What the dispatcher does with the block reports of workers."""

from __future__ import annotations

import pytest

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.block_hash import unpack_block_ids
from slipstream.router.protocol.messages import BlocksChanged
from tests.router.placement.prefix.test_conversations import words
from tests.support.router.mock_cluster import MockCluster

D0, D1 = PeerId("d0", 1), PeerId("d1", 1)


def tell(cluster: MockCluster, peer: PeerId, seq: int, stored: bytes = b"", removed: bytes = b"") -> None:
    message = BlocksChanged(seq, False, stored, removed)
    cluster._perform(cluster.dispatcher.worker_message(peer, message, cluster.now_s))


@pytest.mark.parametrize(
    ("seq", "stored", "removed"), [(9, b"1234567", b""), (9, b"", b"123456789"), (0, b"", b""), (-5, b"", b"")]
)
def test_malformed_news_of_blocks_part_with_that_worker_only(seq: int, stored: bytes, removed: bytes) -> None:
    cluster = MockCluster(num_prefill=0)
    answers = [cluster.submit(f"r{number}", words(number, 50), num_output=30) for number in range(4)]
    cluster.run(until_s=cluster.now_s + 0.01)
    assert {name for answer in answers for name in answer.workers} == {"d0", "d1"}
    tell(cluster, D0, seq, stored, removed)
    assert [close.worker for close in cluster.closed] == [D0]
    assert "BlocksChanged" in cluster.closed[0].reason
    cluster.run()
    for answer in answers:
        assert answer.finish is not None
        assert answer.finish.reason == "length"
        assert answer.workers[-1] == "d1"
    cluster.check_index()


def test_a_gap_is_healed_by_a_snapshot() -> None:
    cluster = MockCluster(num_prefill=0, num_decode=1)
    cluster.ask("a", words(1, 100))
    cluster.worker("d0").loses_blocks = True
    cluster.ask("b", words(2, 100))
    cluster.worker("d0").loses_blocks = False
    with pytest.raises(AssertionError):
        cluster.check_index()
    cluster.ask("c", words(3, 100))
    cluster.check_index()
    status = cluster.dispatcher.snapshot(cluster.now_s).prefix_index
    assert (status.num_gaps, status.num_snapshots) == (1, 1)
    assert cluster.ask("d", [*words(2, 100), 30]).num_cached == 96


def test_a_worker_is_asked_once_for_a_snapshot() -> None:
    cluster = MockCluster(num_prefill=0)
    for seq in (3, 7, 8):
        tell(cluster, D1, seq, stored=b"12345678")
    assert cluster.dispatcher.known_blocks(D1) == frozenset()
    worker = cluster.worker("d1")
    worker.protocol.blocks._last_seq = 8
    cluster.run()
    assert cluster.dispatcher.known_blocks(D1) == frozenset(), "a snapshot of an empty cache"
    tell(cluster, D1, 10, stored=b"12345678")
    assert cluster.dispatcher.known_blocks(D1) == set(unpack_block_ids(b"12345678"))
    assert cluster.dispatcher.snapshot(cluster.now_s).prefix_index.num_gaps == 1


def test_what_a_cancelled_request_would_have_computed_is_expected_no_more() -> None:
    cluster = MockCluster(num_prefill=1, num_decode=1)
    prompt = words(1, 3000)
    cluster.submit("a", prompt, num_output=30)
    assert cluster.dispatcher.snapshot(cluster.now_s).prefix_index.num_expected > 0
    cluster._perform(cluster.dispatcher.cancel("a", cluster.now_s))
    assert cluster.dispatcher.snapshot(cluster.now_s).prefix_index.num_expected == 0
    cluster.run()
    cluster.check_index()
