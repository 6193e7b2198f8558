"""The sizes of steps: constants, or what keeps the ITL level on a machine whose times are a straight line."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.router.protocol.messages import StepTime
from slipstream.workers.engine.scheduling.step_sizes import (
    FIRST_NUM_SEQS,
    LEAST_STEP_TOKENS,
    MOST_SAVED_LEVELS,
    StepSizes,
)
from tests.support.workers.engine_driver import make_limits

BASE_S, SEQ_S, TOKEN_S = 5e-3, 2e-4, 5e-5
LEVEL_S = 0.02
MOST_TOKENS, MOST_SEQS = 2048, 256


def step_s(num_decoding: int, num_tokens: int) -> float:
    return BASE_S + SEQ_S * num_decoding + TOKEN_S * num_tokens


def sizes(level_s: float | None = LEVEL_S, **limits: Any) -> StepSizes:
    automatic = {"auto_step_tokens": True, "auto_num_seqs": True, **limits}
    return StepSizes(make_limits(max_step_tokens=MOST_TOKENS, max_num_seqs=MOST_SEQS, **automatic), level_s)


def decoding(num_seqs: int, seconds: float | None = None) -> StepTime:
    return StepTime(0, 0, num_seqs, 0, step_s(num_seqs, 0) if seconds is None else seconds)


def teach(of: StepSizes, most_seqs: int = 64) -> StepSizes:
    """Lets it see steps of all kinds."""
    rng = random.Random(0)
    for _ in range(200):
        num_seqs, num_tokens = rng.randint(1, most_seqs), rng.choice((32, 100, 256, 800))
        of.observe(decoding(num_seqs))
        of.observe(StepTime(num_tokens, 0, num_seqs, 0, step_s(num_seqs, num_tokens)))
    return of


def test_constants_stay_what_they_are() -> None:
    fixed = teach(sizes(auto_step_tokens=False, auto_num_seqs=False))
    assert (fixed.max_num_seqs, fixed.step_tokens(10, 0)) == (MOST_SEQS, MOST_TOKENS)
    assert not fixed.is_auto


def test_a_step_beside_decoding_takes_about_the_level() -> None:
    learned = teach(sizes())
    for num_decoding in (1, 20, 50):
        num_tokens = learned.step_tokens(num_decoding, 0) - num_decoding
        assert 0.8 * LEVEL_S < step_s(num_decoding, num_tokens) <= LEVEL_S


def test_steps_with_prompts_keep_the_level_on_average_and_use_what_others_have_saved() -> None:
    learned = teach(sizes())
    for _ in range(100):
        learned.step_took(10, step_s(10, 0))  # no prompt has come for some time
    took_s = []
    for _ in range(50):
        num_tokens = learned.step_tokens(10, 0) - 10
        took_s.append(step_s(10, num_tokens))
        learned.step_took(10, took_s[-1])
    assert 2 * LEVEL_S < took_s[0] <= (1 + MOST_SAVED_LEVELS) * LEVEL_S
    assert max(took_s[20:]) <= LEVEL_S
    assert sum(took_s) <= (50 + MOST_SAVED_LEVELS) * LEVEL_S


def test_a_step_without_decoding_is_large_enough_to_make_its_fixed_cost_small() -> None:
    num_tokens = teach(sizes()).step_tokens(0, 0)
    assert step_s(0, num_tokens) > 20 * BASE_S
    without_level = teach(sizes(level_s=None))
    assert without_level.step_tokens(50, 0) - 50 == pytest.approx(without_level.step_tokens(0, 0), abs=50)


def test_prompts_advance_where_decoding_alone_takes_more_than_the_level() -> None:
    assert teach(sizes()).step_tokens(200, 0) == 200 + LEAST_STEP_TOKENS


def test_as_many_sequences_run_as_decode_within_the_level() -> None:
    learned = teach(sizes())
    assert 0.8 * LEVEL_S < step_s(learned.max_num_seqs, 0) <= LEVEL_S


def test_a_level_that_one_sequence_cannot_keep_limits_nothing() -> None:
    assert teach(sizes(level_s=BASE_S / 2), most_seqs=200).max_num_seqs == MOST_SEQS


def test_the_number_of_sequences_grows_only_as_far_as_times_are_known() -> None:
    learned = teach(sizes(level_s=10.0), most_seqs=40)
    assert 70 <= learned.max_num_seqs <= 80
    assert sizes().max_num_seqs == FIRST_NUM_SEQS, "until a step has been seen"


def test_noise_does_not_change_the_number_of_sequences_all_the_time() -> None:
    learned, rng = teach(sizes()), random.Random(1)
    seen = []
    for _ in range(500):
        num_seqs = rng.randint(30, 64)
        learned.observe(decoding(num_seqs, step_s(num_seqs, 0) * rng.lognormvariate(0.0, 0.1)))
        seen.append(learned.max_num_seqs)
    assert sum(one != other for one, other in pairwise(seen)) <= 10


def test_a_machine_that_becomes_slower_gets_smaller_steps_and_fewer_sequences() -> None:
    learned = teach(sizes())
    before = learned.step_tokens(20, 0), learned.max_num_seqs
    for at in range(300):
        num_seqs = 10 + at % 40
        learned.observe(decoding(num_seqs, 2 * step_s(num_seqs, 0)))
        learned.observe(StepTime(200, 0, num_seqs, 0, 2 * step_s(num_seqs, 200)))
    after = learned.step_tokens(20, 0), learned.max_num_seqs
    assert after[0] < 0.7 * before[0]
    assert after[1] < 0.7 * before[1]


samples = st.builds(
    StepTime,
    st.integers(0, 4096),
    st.integers(0, 10_000),
    st.integers(0, 300),
    st.integers(0, 1_000_000),
    st.floats(0.0, 100.0),
)


@given(st.lists(samples, max_size=30), st.one_of(st.none(), st.floats(1e-6, 10.0)), st.integers(0, 255))
def test_whatever_was_measured_sizes_are_within_their_bounds(
    measured: list[StepTime], level_s: float | None, num_decoding: int
) -> None:
    learned = sizes(level_s)
    for sample in measured:
        learned.observe(sample)
        learned.step_took(sample.num_decoding, sample.seconds)
        assert num_decoding < learned.step_tokens(num_decoding, 1000) <= MOST_TOKENS
        assert 1 <= learned.max_num_seqs <= MOST_SEQS
