"""How long answers are expected to be."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.requests.output_length import MAX_CLASSES, OutputLengths


def learn(outputs, lengths, tenant="t", num_prompt=100, **fields):
    for length in lengths:
        outputs.learn(tenant, num_prompt, length, is_whole=True, **fields)


def test_before_any_answer_there_is_a_forecast_within_max_tokens():
    forecast = OutputLengths().predict("t", 100, 50)
    assert 1 <= forecast.low <= forecast.median <= forecast.high <= 50
    wide = OutputLengths().predict("t", 100, 100_000)
    assert wide.low < 60 < wide.median < 400 < wide.high


def test_it_learns_the_quantiles_of_a_class():
    outputs, rng = OutputLengths(), random.Random(0)
    lengths = [rng.randint(100, 200) for _ in range(400)]
    learn(outputs, lengths)
    forecast = outputs.predict("t", 100, 4096)
    assert forecast.low == pytest.approx(110, rel=0.12)
    assert forecast.median == pytest.approx(150, rel=0.1)
    assert forecast.high == pytest.approx(190, rel=0.12)
    assert forecast.mean == pytest.approx(150, rel=0.15)


def test_a_new_tenant_begins_with_what_everybody_does_and_goes_its_own_way():
    outputs = OutputLengths()
    learn(outputs, [1000] * 200, tenant="everybody")
    assert outputs.predict("new", 100, 4096).median == pytest.approx(1000, rel=0.25)
    learn(outputs, [10] * 60, tenant="new")
    assert outputs.predict("new", 100, 4096).median == pytest.approx(10, rel=0.25)
    assert outputs.predict("everybody", 100, 4096).median == pytest.approx(1000, rel=0.25)


def test_prompts_of_another_length_are_another_class():
    outputs = OutputLengths()
    learn(outputs, [20] * 100, num_prompt=10_000)
    learn(outputs, [500] * 100, num_prompt=100)
    assert outputs.predict("t", 12_000, 4096).median == pytest.approx(20, rel=0.3)
    assert outputs.predict("t", 90, 4096).median == pytest.approx(500, rel=0.3)


def test_a_hint_is_believed_as_far_as_the_tenants_hints_were_right():
    outputs = OutputLengths()
    assert 60 < outputs.predict("t", 100, 4096, hint=100).median < 160
    learn(outputs, [200] * 100, hint=50)  # who says 50 gets 200
    assert outputs.predict("t", 100, 4096, hint=50).median == pytest.approx(200, rel=0.2)
    assert outputs.predict("t", 100, 4096, hint=100).median == pytest.approx(400, rel=0.2)


def test_answers_that_were_cut_off_are_not_taken_for_short_ones():
    outputs = OutputLengths()
    learn(outputs, [800] * 50)
    for _ in range(50):
        outputs.learn("t", 100, 16, is_whole=False)
    assert outputs.predict("t", 100, 4096).median > 600


def test_old_answers_fade():
    outputs = OutputLengths()
    learn(outputs, [50] * 1000)
    learn(outputs, [500] * 1000)
    assert outputs.predict("t", 100, 4096).median == pytest.approx(500, rel=0.2)


def test_what_has_outlived_its_forecast_goes_on_for_a_while():
    outputs = OutputLengths()
    learn(outputs, [100] * 200)
    forecast = outputs.predict("t", 100, 4096)
    assert forecast.remaining(40) == pytest.approx(60, rel=0.3)
    assert forecast.remaining(1000) == 100


def test_forecasts_are_scored():
    outputs, rng = OutputLengths(), random.Random(4)
    for _ in range(2000):
        length = min(max(round(rng.lognormvariate(5, 1)), 1), 2000)
        outputs.calibration.score(outputs.predict("t", 100, 2000), length)
        outputs.learn("t", 100, length, is_whole=True)
    calibration = outputs.calibration
    assert calibration.num_scored == 2000
    for quantile, within in calibration.num_within.items():
        assert within / 2000 == pytest.approx(quantile, abs=0.04)
    assert all(loss > 0 for loss in calibration.loss.values())


def test_memory_is_bounded_by_classes():
    outputs = OutputLengths()
    for number in range(2 * MAX_CLASSES):
        learn(outputs, [10], tenant=f"tenant {number}")
        outputs.predict(f"tenant {number}", 100, number + 1)
    assert len(outputs._classes) <= MAX_CLASSES
    assert len(outputs._forecasts) <= MAX_CLASSES


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.booleans()), max_size=50),
    st.integers(1, 10**6),
    st.one_of(st.none(), st.integers(1, 10**6)),
)
def test_quantiles_are_in_order_and_within_max_tokens_whatever_was_learned(lengths, max_tokens, hint):
    outputs = OutputLengths()
    for length, is_whole in lengths:
        outputs.learn("t", 100, length, is_whole=is_whole, hint=hint)
    forecast = outputs.predict("t", 100, max_tokens, hint)
    assert 1 <= forecast.low <= forecast.median <= forecast.high <= max_tokens
    assert 1 <= forecast.mean <= max_tokens
    assert forecast.remaining(max_tokens) > 0
