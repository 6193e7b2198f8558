"""Long prompts and the streams of others: dispatcher, policy and mock workers in virtual time."""

import pytest

from scripts.bench.placement.stream_gaps import LINES, gaps
from slipstream.cluster.tools.bench.load.measures import percentile


@pytest.fixture(scope="module")
def alone():
    return percentile(gaps(LINES["local"], False)[0], 0.99)


def test_the_default_policy_keeps_long_prompts_away_from_streams(alone):
    streams, first = gaps(LINES["slo"], True)
    assert percentile(streams, 0.99) <= 1.3 * alone
    assert max(first) < 0.5


def test_prefill_beside_them_would_stall_them(alone):
    streams, _ = gaps(LINES["local"], True)
    assert percentile(streams, 0.99) > 3 * alone
