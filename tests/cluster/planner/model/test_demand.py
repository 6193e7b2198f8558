"""What load the planner plans for."""

from __future__ import annotations

import random

import pytest

from slipstream.cluster.planner.model.demand import (
    DemandWatch,
    answer_tokens,
    demand_of,
    has_shifted,
    is_answered,
    mix_window,
)
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.signal_window import SignalWindow

SHIFT_S = 60.0


def arrivals(seed: int, until_s: float, shift_s: float = SHIFT_S) -> tuple[SignalWindow, DemandWatch]:
    """4 a second with 1,000 tokens and answers of 30, from the shift on 6 with 100 and answers of 400; each up to 30%
    more or less. Looked at every 2 s."""
    book, watch, rng, now_s, looked_s = SignalWindow(), DemandWatch(), random.Random(seed), 0.0, 0.0
    while True:
        is_after = now_s >= shift_s
        now_s += rng.expovariate(6.0 if is_after else 4.0)
        while now_s >= looked_s + 2.0 and looked_s + 2.0 <= until_s:
            looked_s += 2.0
            watch.see(signals_of(book, looked_s), looked_s)
        if now_s > until_s:
            return book, watch
        isl, osl = (100, 400) if is_after else (1000, 30)
        book.arrived(0, round(isl * rng.uniform(0.7, 1.3)), 1.0, 0.05, now_s)
        book.placed(0.0, osl * rng.uniform(0.7, 1.3), now_s)


def signals_of(book: SignalWindow, now_s: float) -> Signals:
    return Signals(now_s, "r", 1.0, 0.05, 0, 0, 0.0, book.short(now_s), book.long(now_s), latest=book.latest(now_s))


@pytest.mark.parametrize("seed", range(5))
def test_another_load_is_planned_for_as_soon_as_it_shows(seed: int) -> None:
    book, watch = arrivals(seed, SHIFT_S + 4.0)
    signals = signals_of(book, SHIFT_S + 4.0)
    assert has_shifted(signals)
    demand = demand_of(signals, watch.rate(0.0))
    assert demand is not None
    assert demand.isl == pytest.approx(100, rel=0.2), "not the mean of what was and what is"
    assert demand.osl == pytest.approx(400, rel=0.2)
    assert demand.per_s == pytest.approx(6.0, rel=0.6)


@pytest.mark.parametrize("seed", range(5))
def test_of_a_load_that_stays_the_whole_short_window_counts(seed: int) -> None:
    for until_s in range(14, 60, 2):
        book, _ = arrivals(seed, float(until_s))
        signals = signals_of(book, float(until_s))
        assert mix_window(signals) == signals.short
    assert answer_tokens(signals) == pytest.approx(30, rel=0.2)


def test_a_few_prompts_of_another_kind_are_no_shift() -> None:
    book = SignalWindow()
    for number in range(40):
        book.arrived(0, 1000, 1.0, 0.05, number * 0.25)
    for number in range(4):
        book.arrived(0, 50, 1.0, 0.05, 12.0 + number * 0.1)
    assert not has_shifted(signals_of(book, 13.0))


def answered(book: SignalWindow, num: int, foreseen: float, osl: int, now_s: float) -> None:
    for _ in range(num):
        book.finished(0, osl, foreseen, 0.02, True, True, now_s)


def test_short_answers_that_have_ended_do_not_shorten_the_forecasts_of_long_ones() -> None:
    book = SignalWindow()
    for number in range(20):
        book.placed(0.0, 30.0 if number < 10 else 400.0, 0.5 * number)
    answered(book, 20, 30.0, 30, 9.5)  # as forecast
    for number in range(20):
        book.placed(0.0, 400.0, 20.0 + 0.1 * number)
    signals = signals_of(book, 22.0)
    assert signals.long.osl.mean == 30
    assert answer_tokens(signals) == pytest.approx(400)


def test_forecasts_are_corrected_by_what_both_windows_say() -> None:
    book = SignalWindow()
    answered(book, 40, 100.0, 200, 1.0)  # twice as long as forecast; by then it has learned nothing
    book.placed(0.0, 100.0, 1.0)
    assert answer_tokens(signals_of(book, 1.5)) == pytest.approx(200)
    answered(book, 40, 180.0, 200, 30.0)  # forecasts have learned most of it
    book.placed(0.0, 180.0, 30.0)
    assert answer_tokens(signals_of(book, 30.5)) == pytest.approx(200)
    answered(book, 40, 220.0, 200, 60.0)  # the short window takes them for too long: chance, or what is over
    book.placed(0.0, 200.0, 60.0)
    assert answer_tokens(signals_of(book, 60.5)) == pytest.approx(200)


def test_answers_to_what_came_before_say_nothing_of_what_comes_now() -> None:
    book = SignalWindow()
    answered(book, 10, 30.0, 30, 1.0)
    book.placed(0.0, 30.0, 1.0)
    assert is_answered(signals_of(book, 1.5))
    for _ in range(9):
        book.placed(0.0, 400.0, 2.0)
    assert not is_answered(signals_of(book, 2.5))
