"""Ranges are never given out twice, and freed ones become one again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.tensor_memory.free_ranges import FreeRanges

SIZE = 24


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, SIZE)), max_size=60))
def test_it_agrees_with_a_set_of_units(steps: list[tuple[bool, int]]) -> None:
    ranges = FreeRanges(SIZE)
    taken: list[tuple[int, int]] = []
    used: set[int] = set()
    for is_take, number in steps:
        if is_take:
            start = ranges.take(number)
            fits = [at for at in range(SIZE - number + 1) if used.isdisjoint(range(at, at + number))]
            assert start == (fits[0] if fits else None)  # the first place that is large enough
            if start is not None:
                taken.append((start, number))
                used.update(range(start, start + number))
        elif taken:
            start, count = taken.pop(number % len(taken))
            ranges.give(start, count)
            used.difference_update(range(start, start + count))
        assert ranges.num_free == SIZE - len(used)
        assert ranges.used_end == max(used, default=-1) + 1
    for start, count in taken:
        ranges.give(start, count)
    assert ranges.take(SIZE) == 0


@pytest.mark.parametrize(("start", "count"), [(0, 1), (3, 3), (7, 1), (9, 2), (-1, 1)])
def test_what_is_not_in_use_cannot_be_freed(start: int, count: int) -> None:
    ranges = FreeRanges(10)
    ranges.take(5)
    ranges.take(5)
    ranges.give(0, 4)
    ranges.give(7, 3)
    with pytest.raises(ValueError, match="is not in use"):
        ranges.give(start, count)
