"""How many lines are served at a time, and what becomes of an answer."""

from __future__ import annotations

import pytest

from slipstream.router.api.openai.batches.line_answer import LineAnswer
from slipstream.router.api.openai.batches.pacing import Pacing


def test_the_window_grows_to_its_limit_as_long_as_nothing_is_refused() -> None:
    pacing = Pacing(16)
    assert pacing.window == 4
    for _ in range(12):
        pacing.answered()
    assert pacing.window == 16
    pacing.answered()
    assert pacing.window == 16


def test_a_refusal_halves_it_once_for_all_that_were_sent_before() -> None:
    pacing = Pacing(64)
    for _ in range(12):
        pacing.answered()
    pacing.refused(sent_s=1.0, retry_in_s=2.0, now=5.0)
    pacing.refused(sent_s=4.0, retry_in_s=1.0, now=5.5)
    assert (pacing.window, pacing.not_before_s) == (8, 7.0)
    for _ in range(8):
        pacing.answered()
    assert pacing.window == 8, "by one with a window full of answers"
    pacing.answered()
    assert pacing.window == 9
    pacing.refused(sent_s=7.0, retry_in_s=1.0, now=8.0)
    assert pacing.window == 4
    for now in range(9, 20):
        pacing.refused(sent_s=now, retry_in_s=0.0, now=now)
    assert pacing.window == 1


@pytest.mark.parametrize(
    ("status", "is_success", "is_refused_for_now", "may_be_accident"),
    [
        (200, True, False, False),
        (400, False, False, False),
        (404, False, False, False),
        (429, False, True, False),
        (500, False, False, True),
        (503, False, True, False),
        (504, False, False, True),
    ],
)
def test_what_an_answer_means(status: int, is_success: bool, is_refused_for_now: bool, may_be_accident: bool) -> None:
    answer = LineAnswer(status, b"{}", "r")
    found = answer.is_success, answer.is_refused_for_now, answer.may_be_accident
    assert found == (is_success, is_refused_for_now, may_be_accident)


def test_a_line_is_tried_again_when_the_answer_says_so_but_within_a_minute() -> None:
    assert LineAnswer(429, b"{}", "r", 7.5).retry_in_s == 7.5
    assert LineAnswer(429, b"{}", "r", 9000.0).retry_in_s == 60.0
    assert LineAnswer(503, b"{}", "r").retry_in_s == 1.0
