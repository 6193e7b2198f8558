"""Whether a running answer had better go on elsewhere: the sums."""

from __future__ import annotations

import math

import pytest

from slipstream.router.dispatch.migration.rebalance_choice import (
    Gain,
    MigratableStream,
    ProjectedWorker,
    best_migration,
    filled_after_s,
)

DECODE = (0.01, 0.001, 0.0)  # 10 ms a step and 1 ms a sequence
ITL_SLO_S = 0.03


def stream(name: str, remaining: float = 200.0, num_gaps: int = 100, gap_s: float = 0.02) -> MigratableStream:
    """An answer whose tokens have come every `gap_s` so far."""
    allowed_s = 1.0 + (num_gaps + remaining) * ITL_SLO_S
    return MigratableStream(name, 300, remaining, num_gaps, num_gaps * gap_s, ITL_SLO_S, allowed_s)


def move(num_here: int, num_there: int, remaining: float = 200.0, **how: float) -> Gain | None:
    here = [stream(f"here-{number}", remaining, **how) for number in range(num_here)]  # type: ignore[arg-type]
    there = [stream(f"there-{number}") for number in range(num_there)]
    return best_migration(projected(num_here), projected(num_there), here, here, there)


def projected(num_seqs: int) -> ProjectedWorker:
    return ProjectedWorker(DECODE, num_seqs, 300 * num_seqs)


def test_an_answer_leaves_a_crowd_for_an_empty_worker() -> None:
    found = move(25, 0)
    assert found is not None
    assert found.from_step_s == pytest.approx(0.035)
    assert found.to_step_s == pytest.approx(0.011)
    # Its own 200 steps, 24 ms less each, and 1 ms less for 24 others; and there is a level to win.
    assert found.seconds > 200 * (0.024 + 24 * 0.001) - 0.1


@pytest.mark.parametrize("num", [1, 4, 25])
def test_between_workers_that_are_alike_nothing_moves(num: int) -> None:
    assert move(num, num) is None
    assert move(num, num - 1) is None
    assert move(num + 1, num) is None


def test_nothing_moves_for_a_pace_within_the_error_of_step_times() -> None:
    assert move(16, 14) is None  # 25 instead of 26 ms
    assert move(16, 10) is not None


def test_an_answer_whose_level_is_not_at_stake_moves_only_where_it_is_twice_as_fast() -> None:
    assert move(13, 6) is None  # 17 instead of 23 ms, of 30
    assert move(13, 0) is not None  # 11 ms


def test_what_ends_soon_stays() -> None:
    assert move(12, 0, remaining=2.0) is None
    assert move(12, 0, remaining=50.0) is not None


def test_the_longest_answer_goes() -> None:
    here = [stream("short", 20.0), stream("long", 400.0), *(stream(f"s{number}", 100.0) for number in range(20))]
    found = best_migration(projected(22), projected(0), here, here, [])
    assert found is not None
    assert found.stream.request_id == "long"


def test_a_level_that_can_still_be_kept_counts_for_more_than_one_that_is_lost() -> None:
    """At 34 ms a step all will be late in the end, but one whose tokens came quickly so far can be saved by going."""
    lost = [stream(f"lost-{number}", 200.0, num_gaps=600, gap_s=0.1) for number in range(23)]
    here = [*lost, stream("can be saved", 200.0, num_gaps=100, gap_s=0.025)]
    found = best_migration(projected(24), projected(4), here, here, [stream(f"there-{number}") for number in range(4)])
    assert found is not None
    assert found.stream.request_id == "can be saved"


def test_nobody_is_made_late_for_one_who_is_lost_already() -> None:
    """There it would be a little faster; but those 18 at 28 ms keep their level of 30 ms by a hair."""
    lost = [stream(f"lost-{number}", 200.0, num_gaps=600, gap_s=0.1) for number in range(26)]
    near = [stream(f"there-{number}", 200.0, gap_s=0.0299) for number in range(18)]
    assert best_migration(projected(26), projected(18), lost, lost, near) is None
    easy = [stream(f"there-{number}", 200.0, gap_s=0.001) for number in range(18)]
    assert best_migration(projected(26), projected(18), lost, lost, easy) is not None


def test_where_prompts_take_the_time_steps_are_rarer() -> None:
    here = [stream(f"here-{number}") for number in range(16)]
    idle, busy = ProjectedWorker(DECODE, 0, 0, prefill_share=0.1), ProjectedWorker(DECODE, 0, 0, prefill_share=0.6)
    assert best_migration(projected(16), idle, here, here, []) is not None
    assert best_migration(projected(16), busy, here, here, []) is None


def test_only_what_may_move_does() -> None:
    here = [stream(f"here-{number}") for number in range(20)]
    found = best_migration(projected(20), projected(0), here[7:8], here, [])
    assert found is not None
    assert found.stream is here[7]
    assert best_migration(projected(20), projected(0), [], here, []) is None


def test_what_would_have_ended_before_its_pages_are_there_stays() -> None:
    here = [stream(f"here-{number}", 100.0) for number in range(20)]
    near = ProjectedWorker(DECODE, 0, 0, transfer=(0.0, 0.01), page_tokens=16)  # 0.2 s for 300 tokens: 7 of 100 steps
    far = ProjectedWorker(DECODE, 0, 0, transfer=(0.0, 0.2), page_tokens=16)  # 3.8 s
    assert best_migration(projected(20), near, here, here, []) is not None
    assert best_migration(projected(20), far, here, here, []) is None


def test_what_new_requests_will_level_soon_is_not_worth_a_move() -> None:
    here = [stream(f"here-{number}") for number in range(25)]
    assert best_migration(projected(25), projected(0), here, here, [], horizon_s=30.0) is not None
    assert best_migration(projected(25), projected(0), here, here, [], horizon_s=0.03) is None


def test_new_requests_fill_a_lead_sequence_by_sequence() -> None:
    assert filled_after_s(projected(5), 0.02, 4.0) == pytest.approx(5.0)  # 20 sequences of 1 ms each, four a second
    assert filled_after_s(projected(5), 0.02, 0.0) == math.inf
