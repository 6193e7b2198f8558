from __future__ import annotations

import pytest

from slipstream.router.placement.retention.pause_estimates import (
    ANSWER,
    EDGES_S,
    GONE,
    MAX_CLASSES,
    NUM_BINS,
    PRIOR,
    PauseEstimates,
    bin_of,
)


def test_the_bins_cover_all_pauses_without_gaps() -> None:
    assert bin_of(0.0) == 0
    assert bin_of(1e9) == NUM_BINS - 1
    for at, edge_s in enumerate(EDGES_S[:-1]):
        assert bin_of(edge_s * 0.999) == at
        assert bin_of(edge_s * 1.001) == at + 1


def test_the_prior_is_a_distribution() -> None:
    assert sum(PRIOR) == pytest.approx(1.0)
    assert 0.0 < PRIOR[GONE] < 1.0


def test_a_tool_that_always_takes_the_same_time_is_kept_for_about_that() -> None:
    estimates = PauseEstimates()
    for _ in range(200):
        estimates.learn("t", "test", 60.0)
    forecast = estimates.forecast("t", "test", 600.0)
    assert 60.0 <= forecast.keep_s <= 120.0
    assert forecast.return_share > 0.9
    assert 40.0 <= forecast.mean_s <= 80.0


def test_a_tenant_without_pauses_borrows_those_of_the_tool_and_a_new_tool_those_of_all() -> None:
    estimates = PauseEstimates()
    for _ in range(200):
        estimates.learn("old", "read", 0.1)
    prior = PauseEstimates().forecast("new", "read", 600.0)
    for tool in ("read", "grep"):
        assert estimates.forecast("new", tool, 600.0).keep_s < prior.keep_s / 10


def test_the_times_of_tools_say_nothing_about_users() -> None:
    estimates = PauseEstimates()
    before = estimates.forecast("t", ANSWER, 600.0)
    for _ in range(50):
        estimates.learn("t", "read", 0.1)
    assert estimates.forecast("t", ANSWER, 600.0) == before


def test_conversations_that_do_not_come_back_lower_the_share_and_raise_the_mean() -> None:
    estimates = PauseEstimates()
    for _ in range(100):
        estimates.learn("t", ANSWER, 10.0)
    loyal = estimates.forecast("t", ANSWER, 600.0)
    for _ in range(400):
        estimates.learn("t", ANSWER, None)
    leaving = estimates.forecast("t", ANSWER, 600.0)
    assert leaving.return_share < 0.3 < loyal.return_share
    assert leaving.mean_s > loyal.mean_s


def test_a_limit_cuts_the_time_and_the_share_that_comes_back_within_it() -> None:
    estimates = PauseEstimates()
    for pause_s in (1.0, 1000.0):
        for _ in range(200):
            estimates.learn("t", "build", pause_s)
    forecast = estimates.forecast("t", "build", 60.0)
    assert forecast.keep_s == 60.0
    assert forecast.return_share < 0.7


def test_old_pauses_fade() -> None:
    estimates = PauseEstimates()
    for _ in range(1000):
        estimates.learn("t", "build", 300.0)
    for _ in range(1000):
        estimates.learn("t", "build", 1.0)
    assert estimates.forecast("t", "build", 600.0).keep_s < 10.0


def test_the_table_is_bounded() -> None:
    estimates = PauseEstimates()
    for number in range(MAX_CLASSES):
        estimates.learn(f"tenant {number}", f"tool {number}", 1.0)
    assert len(estimates) <= MAX_CLASSES
