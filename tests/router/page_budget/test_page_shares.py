"""How a host's memory is divided, by need and weight."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.router.page_budget.page_shares import PageNeeds, divide_pages
from slipstream.router.page_budget.water_filling import water_fill


def needs(name: str, **others: float) -> PageNeeds:
    return PageNeeds(name, **{"page_bytes": 1.0, "num_pages": 1000, "longest": 10, **others})  # type: ignore[arg-type]


@st.composite
def any_needs(draw: st.DrawFn) -> PageNeeds:
    num_pages = draw(st.integers(1, 500))
    num_used = draw(st.integers(0, num_pages))
    return PageNeeds(
        str(draw(st.integers())),
        draw(st.floats(0.5, 1e6)),
        num_pages,
        draw(st.integers(1, 600)),
        num_used,
        draw(st.integers(0, num_pages - num_used)),
        draw(st.integers(0, 5000)),
        draw(st.floats(0.01, 100.0)),
    )


@given(
    amount=st.floats(0, 1e6),
    wants=st.lists(st.tuples(st.floats(0, 1e5), st.floats(0.01, 10)), min_size=1, max_size=8),
)
def test_water_is_given_up_to_the_wants_and_none_is_left_while_someone_wants(
    amount: float, wants: list[tuple[float, float]]
) -> None:
    given_to = water_fill(amount, [want for want, _ in wants], [weight for _, weight in wants])
    assert all(0 <= got <= want for got, (want, _) in zip(given_to, wants, strict=True))
    assert sum(given_to) == pytest.approx(min(amount, sum(want for want, _ in wants)), rel=1e-6, abs=1e-6)
    levels = [got / weight for got, (want, weight) in zip(given_to, wants, strict=True) if got < want]
    if levels:
        assert max(levels) == pytest.approx(min(levels), rel=1e-6, abs=1e-6)


@given(budget=st.floats(0, 1e8), workers=st.lists(any_needs(), min_size=1, max_size=6, unique_by=lambda one: one.name))
def test_shares_never_exceed_the_budget_or_a_pool(budget: float, workers: list[PageNeeds]) -> None:
    shares = divide_pages(budget, workers)
    assert sum(shares[one.name] * one.page_bytes for one in workers) <= budget * (1 + 1e-9) + 1e-3
    assert all(0 <= shares[one.name] <= one.num_pages for one in workers)
    if sum(one.assured * one.page_bytes for one in workers) <= budget * (1 - 1e-9):
        assert all(shares[one.name] >= one.assured - 1 for one in workers)


def test_an_idle_worker_keeps_what_one_sequence_needs_and_the_busy_one_gets_the_rest() -> None:
    shares = divide_pages(100, [needs("busy", num_used=50, num_wanted=900), needs("idle", num_cached=60)])
    assert shares == {"busy": 90, "idle": 10}


def test_under_demand_from_both_the_weights_decide() -> None:
    shares = divide_pages(
        100, [needs("a", num_used=1, num_wanted=500, weight=3.0), needs("b", num_used=1, num_wanted=500)]
    )
    assert shares["a"] == 10 + 60
    assert shares["b"] == 10 + 20


def test_what_one_does_not_need_goes_to_the_other_and_cached_pages_stay_if_they_can() -> None:
    shares = divide_pages(100, [needs("a", num_used=8, num_cached=50), needs("b", num_used=20)])
    assert sum(shares.values()) == 100
    assert shares["a"] >= 8 + 50
    assert shares["b"] >= 20


def test_where_not_all_can_have_a_long_sequence_the_first_in_order_has_one_whole() -> None:
    a, b = (needs(name, longest=80, num_wanted=200) for name in "ab")
    assert divide_pages(100, [a, b]) == {"a": 90, "b": 10} or divide_pages(100, [a, b])["a"] >= 80
    assert divide_pages(100, [b, a])["b"] >= 80


def test_without_a_budget_every_worker_has_its_whole_pool() -> None:
    assert divide_pages(math.inf, [needs("a"), needs("b", num_pages=7)]) == {"a": 1000, "b": 7}
