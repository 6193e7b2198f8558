"""What is learned of workers' times."""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.protocol.messages import StepTime
from slipstream.router.registry.least_squares import LinearFit
from slipstream.router.registry.service_times import (
    MAX_CORRECTION,
    MIN_CORRECTION,
    PREFILL_PRIOR,
    ServiceTimes,
)


def teach(times, *, step_s=0.01, by_seq_s=2e-4, token_s=5e-5, chunk_s=0.004, noise=0.0, count=80, seed=0):
    rng = random.Random(seed)
    for _ in range(count):
        seqs = rng.randint(1, 32)
        tokens = rng.randint(16, 2048)
        wobble = rng.gauss(1.0, noise)
        times.observe_step(StepTime(0, 0, seqs, seqs * rng.randint(100, 2000), (step_s + by_seq_s * seqs) * wobble))
        times.observe_step(StepTime(tokens, tokens // 2, 0, 0, (chunk_s + token_s * tokens) * wobble))


def test_before_any_sample_there_is_a_prediction_and_it_is_unsure():
    estimate = ServiceTimes().prefill_s(1000)
    assert estimate.seconds > 0
    assert estimate.sigma_s > estimate.seconds


def test_it_learns_what_it_is_told_and_becomes_sure_of_it():
    times = ServiceTimes()
    teach(times)
    assert times.decode_step_s(16, 16_000).seconds == pytest.approx(0.01 + 16 * 2e-4, rel=0.05)
    assert times.prefill_s(1500).seconds == pytest.approx(0.004 + 1500 * 5e-5, rel=0.05)
    assert times.prefill_s(1500).sigma_s < 0.1 * times.prefill_s(1500).seconds


def test_it_learns_within_noise():
    times = ServiceTimes()
    teach(times, noise=0.15, count=300)
    assert times.decode_step_s(16, 16_000).seconds == pytest.approx(0.01 + 16 * 2e-4, rel=0.15)
    assert 0.05 < times.noise("decode") < 0.3


def test_a_coefficient_that_noise_has_brought_to_nothing_finds_its_way_back():
    times, rng = ServiceTimes(), random.Random(2)
    for _ in range(60):
        seqs = rng.randint(1, 32)
        times.observe_step(StepTime(0, 0, seqs, seqs * 500, 1e-3 * seqs))
    assert times.decode[0] < 1e-3
    for _ in range(200):
        seqs = rng.randint(1, 32)
        times.observe_step(StepTime(0, 0, seqs, seqs * 500, 0.02 + 1e-4 * seqs))
    assert times.decode_step_s(1, 500).seconds == pytest.approx(0.0201, rel=0.05)


def test_the_sum_of_some_steps_teaches_what_the_steps_would():
    times, rng = ServiceTimes(), random.Random(4)
    for _ in range(100):
        steps, seqs = rng.randint(1, 30), rng.randint(1, 32)
        seconds = steps * (0.01 + 2e-4 * seqs)
        times.observe_step(StepTime(0, 0, steps * seqs, steps * seqs * 500, seconds, steps))
    assert times.decode_step_s(16, 8000).seconds == pytest.approx(0.0132, rel=0.02)
    assert times.decode_step_s(1, 500).seconds == pytest.approx(0.0102, rel=0.05)


@pytest.mark.parametrize("factor", [0.02, 0.1, 30.0])
def test_a_prior_that_is_far_off_does_not_matter_for_long(factor):
    times = ServiceTimes()
    teach(times, step_s=0.01 * factor, by_seq_s=2e-4 * factor, token_s=5e-5 * factor, chunk_s=0.004 * factor)
    assert times.prefill_s(1000).seconds == pytest.approx((0.004 + 1000 * 5e-5) * factor, rel=0.2)


def test_the_cost_of_context_is_told_apart():
    times, rng = ServiceTimes(), random.Random(1)
    for _ in range(200):
        tokens, context = rng.randint(64, 512), rng.randint(0, 30_000)
        times.observe_step(StepTime(tokens, context, 0, 0, 0.002 + tokens * 1e-5 + tokens * context * 1e-8))
    _, token_s, pair_s = times.prefill
    assert pair_s == pytest.approx(1e-8, rel=0.05)
    assert token_s == pytest.approx(1e-5, rel=0.3)
    assert times.prefill_s(512, 20_000, 512).seconds == pytest.approx(0.002 + 512 * (1e-5 + 20_256 * 1e-8), rel=0.05)


def test_prompts_beside_streams_teach_the_time_of_the_prompts():
    times = ServiceTimes()
    teach(times, count=100)
    for tokens in (100, 200, 400, 800) * 10:
        seconds = 0.004 + 2 * tokens * 5e-5 + 20 * 2e-4  # prompts now take twice as long
        times.observe_step(StepTime(tokens, tokens // 2, 20, 10_000, seconds))
    assert times.prefill_s(500).seconds == pytest.approx(0.004 + 1000 * 5e-5, rel=0.15)


@settings(max_examples=50, deadline=None)
@given(st.floats(min_value=0, max_value=1e300), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**6))
def test_one_absurd_sample_moves_a_settled_fit_by_little(seconds, tokens, context, seqs):
    times = ServiceTimes()
    teach(times, noise=0.05)
    before = times.decode_step_s(8, 8000).seconds, times.prefill_s(500).seconds
    times.observe_step(StepTime(tokens, context, seqs, context, seconds))
    after = times.decode_step_s(8, 8000).seconds, times.prefill_s(500).seconds
    for old, new in zip(before, after, strict=True):
        assert old / 2 < new < 2 * old


def test_now_and_then_an_outlier_does_not_matter():
    times, rng = ServiceTimes(), random.Random(3)
    for at in range(300):
        seqs = rng.randint(1, 32)
        seconds = 5.0 if at % 20 == 19 else 0.01 + 2e-4 * seqs
        times.observe_step(StepTime(0, 0, seqs, seqs * 500, seconds))
    assert times.decode_step_s(16, 8000).seconds == pytest.approx(0.0132, rel=0.5)


def test_a_worker_that_has_become_slower_is_believed():
    times = ServiceTimes()
    teach(times, noise=0.05)
    teach(times, noise=0.05, step_s=0.05, by_seq_s=1e-3, token_s=2.5e-4, chunk_s=0.02, count=40)
    assert times.decode_step_s(16, 16_000).seconds == pytest.approx(5 * 0.0132, rel=0.25)


def test_absurd_first_samples_are_outlived():
    times = ServiceTimes()
    for _ in range(3):
        times.observe_step(StepTime(100, 50, 0, 0, 600.0))
        times.observe_step(StepTime(0, 0, 1, 10, 1e-12))
    teach(times, count=250)
    assert times.prefill_s(500).seconds == pytest.approx(0.004 + 500 * 5e-5, rel=0.5)
    assert times.decode_step_s(16, 16_000).seconds == pytest.approx(0.0132, rel=0.5)


def test_who_has_no_samples_is_like_the_pool_and_else_like_the_other():
    prefill, decode = ServiceTimes(), ServiceTimes()
    teacher = ServiceTimes(prefill, decode)
    fresh_group, fresh_decode = ServiceTimes(prefill, decode), ServiceTimes(decode, prefill)
    assert fresh_group.prefill == PREFILL_PRIOR
    for tokens in (100, 500, 1000, 2000) * 5:
        teacher.observe_step(StepTime(tokens, tokens // 2, 0, 0, 0.01 + tokens * 3e-4))
    for times in (fresh_group, fresh_decode):
        assert times.prefill_s(1000).seconds == pytest.approx(0.31, rel=0.1)
        assert times.num_samples("prefill") == 0
    teach(fresh_decode)
    assert fresh_decode.prefill_s(1000).seconds == pytest.approx(0.054, rel=0.1)
    assert fresh_group.prefill_s(1000).seconds == pytest.approx(0.31, rel=0.1), "the pools do not mix"


def test_transfers_gaps_and_reservations_are_learned():
    times = ServiceTimes()
    for pages in (1, 10, 50, 200) * 10:
        times.observe_transfer(pages, 0.001 + pages * 1e-4)
        times.observe_gap(pages, 0.0)
        times.observe_reserve(0.02)
    assert times.transfer_s(100).seconds == pytest.approx(0.011, rel=0.1)
    assert times.gap_s(100).seconds < 0.001
    assert times.reserve_s().seconds == pytest.approx(0.02, rel=0.1)


def test_reality_corrects_within_bounds_and_comes_back():
    times = ServiceTimes()
    for _ in range(200):
        times.observe_first_token(0.1, 0.2)
    assert times.correction == pytest.approx(0.205 / 0.105, rel=0.02)
    for _ in range(200):
        times.observe_first_token(0.1, 0.1)
    assert times.correction == pytest.approx(1.0, rel=0.02)
    for _ in range(500):
        times.observe_first_token(1e-9, 1e9)
    assert times.correction == MAX_CORRECTION
    for _ in range(500):
        times.observe_first_token(1e9, 0.0)
    assert times.correction == MIN_CORRECTION
    times.observe_first_token(float("nan"), 1.0)
    times.observe_first_token(1.0, float("inf"))
    assert times.correction == MIN_CORRECTION


def test_one_late_first_token_says_little():
    times = ServiceTimes()
    times.observe_first_token(0.1, 100.0)
    assert times.correction < 1.25


def test_a_profile_survives_json():
    times = ServiceTimes()
    teach(times)
    times.observe_transfer(10, 0.01)
    times.observe_first_token(0.1, 0.15)
    again = ServiceTimes.from_dict(json.loads(json.dumps(times.to_dict())))
    assert again.to_dict() == times.to_dict()
    assert again.prefill_s(777) == times.prefill_s(777)


@pytest.mark.parametrize(
    "broken",
    [
        {"fits": {"sleep": LinearFit((1.0,)).to_dict()}, "reality": 1.0},
        {"fits": {"decode": LinearFit((1.0,)).to_dict()}, "reality": 1.0},
        {"fits": {}, "reality": 1e9},
    ],
)
def test_a_profile_that_cannot_be_is_an_error(broken):
    with pytest.raises(ValueError):  # noqa: PT011 - one of three messages
        ServiceTimes.from_dict(broken)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 600), st.integers(0, 4096), st.integers(0, 256)), max_size=60))
def test_whatever_comes_predictions_stay_finite_and_are_never_negative(samples):
    times = ServiceTimes()
    for seconds, tokens, seqs in samples:
        times.observe_step(StepTime(tokens, tokens, seqs, seqs * 100, seconds))
    for estimate in (times.decode_step_s(16, 1000), times.prefill_s(1000)):
        assert 0 <= estimate.seconds < 1e9
        assert 0 <= estimate.sigma_s < 1e9


def of_4000(times: ServiceTimes) -> float:
    return times.prefill_s(4000, 0, 512).seconds


def learn(times: ServiceTimes, tokens: int, context: int, seconds: float) -> None:
    times.observe_step(StepTime(tokens, context, 0, 0, seconds))


@pytest.mark.parametrize("num_short", [20, 1000, 20_000])
def test_long_prompts_are_not_forgotten_over_short_ones(num_short: int) -> None:
    rng = random.Random(1)
    times = ServiceTimes()
    for tokens, context in ((32, 16), (125, 63), (32, 4080)):  # what a worker times at its start
        learn(times, tokens, context, 0.02 + 1.2e-3 * tokens + 2e-7 * tokens * context)
    for _ in range(num_short):
        tokens = rng.choice((8, 32, 60))
        learn(times, tokens, tokens // 2, (0.02 + 1.2e-3 * tokens) * rng.lognormvariate(0, 0.4))
    assert of_4000(times) == pytest.approx(8 * 0.02 + 1.2e-3 * 4000 + 2e-7 * 8e6, rel=0.35)


def test_a_worker_that_has_become_slower_is_believed_with_its_next_long_prompt() -> None:
    times = ServiceTimes()
    for slowness in (1.0, 3.0):
        for _ in range(50):
            learn(times, 32, 16, slowness * 0.06)
        for tokens, context, seconds in ((512, 256, 0.8), (512, 1800, 1.1), (512, 3300, 1.5)) * 6:
            learn(times, tokens, context, slowness * seconds)
        for _ in range(1000):
            learn(times, 32, 16, slowness * 0.06)
        assert of_4000(times) == pytest.approx(slowness * 9.0, rel=0.25)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, 1e9])
def test_a_large_chunk_that_cannot_be_true_is_not_kept_in_mind(seconds: float) -> None:
    times, other = ServiceTimes(), ServiceTimes()
    for number in range(200):
        for one in (times, other):
            learn(one, 32, 16, 0.06)
        if number == 50:
            learn(other, 4096, 2048, seconds)
    assert other.to_dict() == times.to_dict()


@pytest.mark.parametrize("seed", range(6))
def test_rounding_does_not_grow_into_predictions(seed: int) -> None:
    rng = random.Random(seed)
    times = ServiceTimes()
    for number in range(3000):
        tokens, context = ((32, 16), (60, 30), (125, 63), (32, 4080))[number % 4]
        seconds = 0.02 + 1.2e-3 * tokens + 2e-7 * tokens * context
        learn(times, tokens, context, seconds * (rng.lognormvariate(0, 0.1) if number % 4 < 2 else 1.0))
        if number > 100:
            assert of_4000(times) == pytest.approx(8 * 0.02 + 1.2e-3 * 4000 + 2e-7 * 8e6, rel=0.3)
