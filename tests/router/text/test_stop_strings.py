"""Stop strings: found across any cut, exact to the character, and never later than needed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.text.stop_strings import StopMatcher

SMALL = st.text(alphabet="ab\n", max_size=40)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=4)


def expected(text: str, stops: list[str], num_protected: int = 0) -> tuple[str, str | None]:
    """Character by character, as slowly and plainly as possible."""
    for end in range(num_protected + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(deadline=None)
@given(SMALL, STOPS, st.lists(st.integers(0, 40), max_size=10))
def test_the_result_does_not_depend_on_where_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    released = "".join(matcher.add(text[a:b]) for a, b in pairwise(borders))
    if matcher.matched is None:
        released += matcher.finish()
    assert (released, matcher.matched) == expected(text, stops)


@settings(deadline=None)
@given(SMALL, STOPS, st.lists(st.integers(0, 40), max_size=10), st.integers(0, 40), st.booleans())
def test_a_stop_string_ends_the_text_only_behind_what_is_protected(
    text: str, stops: list[str], cuts: list[int], num_protected: int, include: bool
) -> None:
    num_protected = min(num_protected, len(text))
    borders = sorted({0, num_protected, len(text), *(min(cut, len(text)) for cut in cuts)})
    matcher = StopMatcher(stops, include)
    released = "".join(matcher.add(text[a:b], protected=b <= num_protected) for a, b in pairwise(borders))
    if matcher.matched is None:
        released += matcher.finish()
    before, matched = expected(text, stops, num_protected)
    assert (released, matcher.matched) == (before + matched if include and matched else before, matched)


@settings(deadline=None)
@given(SMALL, STOPS)
def test_only_what_could_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    released = ""
    for character in text:
        released += matcher.add(character)
        if matcher.matched is not None:
            return
        seen = released + text[len(released) : len(released) + matcher.num_held]
        held = seen[len(released) :]
        longest = max((k for stop in stops for k in range(len(stop)) if seen.endswith(stop[:k])), default=0)
        assert len(held) == longest


def test_the_stop_string_itself_is_released_on_request() -> None:
    matcher = StopMatcher(["END"], include=True)
    assert [matcher.add(piece) for piece in ("one E", "N", "D two")] == ["one ", "", "END"]
    assert matcher.matched == "END"


def test_nothing_is_released_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert [matcher.add("ax"), matcher.add("b"), matcher.finish()] == ["a", "", ""]
