"""Which requests are copied, and what is said about the answers."""

from __future__ import annotations

from array import array

import pytest

from slipstream.router.dispatch.mirror.mirror import COPY_PRIORITY, MAX_PAIRS, Mirror, Pair, first_difference
from slipstream.router.protocol.generation import (
    EarlyEnd,
    GenerateRequest,
    GenerationError,
    GenerationFinish,
    Resumed,
    Usage,
)
from slipstream.router.protocol.messages import SamplingParams

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)
USAGE = Usage(1, 1, 0)
WHOLE = GenerationFinish("stop", USAGE, stop_token_id=9)
FAILED = GenerationFinish("error", USAGE, error=GenerationError("worker_failed", "it is broken"))


def request(sampling: SamplingParams = GREEDY) -> GenerateRequest:
    return GenerateRequest(
        "r1", [1, 2], sampling, tenant="alice", names=("n",), session="s", timeout_s=1.0, version="1", cache_salt="x"
    )


def pair_of(mirror: Mirror, sampling: SamplingParams = GREEDY) -> Pair:
    pair = mirror.pair_of(request(sampling))
    assert pair is not None
    return pair


def ends(mirror: Mirror, pair: Pair, answer: list[int], copied: list[int]) -> None:
    pair.answer.extend(answer)
    pair.copied_answer.extend(copied)
    mirror.original_ended(pair, WHOLE)
    mirror.copy_ended(pair, WHOLE)


def test_the_share_is_spread_out_evenly() -> None:
    mirror = Mirror(5.0)
    copied = [number for number in range(1, 101) if mirror.pair_of(request()) is not None]
    assert copied == [20, 40, 60, 80, 100]


def test_a_copy_has_nothing_of_the_client() -> None:
    copy = pair_of(Mirror(100.0)).copy
    assert (copy.tenant, copy.names, copy.session, copy.timeout_s, copy.version) == ("", (), "", None, "")
    assert (copy.prompt_ids, copy.sampling, copy.cache_salt) == ([1, 2], GREEDY, "x")
    assert copy.priority == COPY_PRIORITY
    assert copy.request_id != "r1"


def test_answers_that_a_dead_router_had_begun_are_not_copied() -> None:
    assert Mirror(100.0).pair_of(request()._replace(resumed=Resumed(b"", ""))) is None


def test_greedy_answers_are_compared_when_both_have_ended() -> None:
    mirror = Mirror(100.0)
    ends(mirror, pair_of(mirror), [5, 6, 9], [5, 6, 9])
    ends(mirror, pair_of(mirror), [5, 6, 9], [5, 7, 9])
    ends(mirror, pair_of(mirror), [5, 6, 9], [5, 6, 9, 4])
    ends(mirror, pair_of(mirror, GREEDY._replace(temperature=1.0)), [5], [6])
    counts = mirror.counts
    assert (counts.num_copied, counts.num_compared, counts.num_equal, counts.first_differences) == (4, 3, 1, 1 + 3)
    assert "1 of 3 greedy answers equal, the others differ from token 2 on average" in counts.text


@pytest.mark.parametrize("reason", ["abort", "stop"])
def test_of_an_answer_that_its_client_cut_short_only_that_part_is_compared(reason: EarlyEnd) -> None:
    mirror = Mirror(100.0)
    pair = pair_of(mirror)
    pair.answer.extend([5, 6])
    mirror.original_ended(pair, GenerationFinish(reason, USAGE))
    pair.copied_answer.append(5)
    assert not pair.is_copy_done
    pair.copied_answer.extend([6, 7])
    assert pair.is_copy_done, "so it is cancelled"
    mirror.copy_ended(pair, GenerationFinish("abort", USAGE))
    assert (mirror.counts.num_compared, mirror.counts.num_equal) == (1, 1)


def test_failures_are_counted_and_not_compared() -> None:
    mirror = Mirror(100.0)
    for original, copy in ((WHOLE, FAILED), (FAILED, WHOLE)):
        pair = pair_of(mirror)
        mirror.copy_ended(pair, copy)
        mirror.original_ended(pair, original)
    assert (mirror.counts.num_failed, mirror.counts.num_compared) == (1, 0)


def test_a_refused_copy_is_skipped() -> None:
    mirror = Mirror(100.0)
    pair = pair_of(mirror)
    mirror.refused(pair)
    mirror.original_ended(pair, WHOLE)
    assert (mirror.counts.num_copied, mirror.counts.num_skipped, mirror.counts.num_compared) == (0, 1, 0)


def test_only_so_many_answers_are_kept() -> None:
    mirror = Mirror(100.0)
    pairs = [pair_of(mirror) for _ in range(MAX_PAIRS)]
    assert mirror.pair_of(request()) is None
    assert mirror.counts.num_skipped == 1
    ends(mirror, pairs[0], [9], [9])
    assert mirror.pair_of(request()) is not None


def test_the_first_difference_of_two_answers() -> None:
    assert first_difference(array("i", [1, 2]), array("i", [1, 3])) == 1
    assert first_difference(array("i", [1, 2]), array("i", [1])) == 1
    assert first_difference(array("i"), array("i", [1])) == 0
