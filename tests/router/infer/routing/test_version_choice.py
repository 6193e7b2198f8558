"""Which version of a tensor model a request gets."""

from __future__ import annotations

from collections import Counter

from slipstream.router.infer.routing.version_choice import VersionChoice
from slipstream.router.tensors.infer_request import InferRequest, SequenceFlags

BOTH = ("1", "2")
NINE_TO_ONE = {"1": 90.0, "2": 10.0}


def chosen(choice: VersionChoice, request_id: str, serving: tuple[str, ...] = BOTH) -> str:
    return choice.choose(InferRequest("m", request_id=request_id), serving).version


def in_sequence(choice: VersionChoice, name: int, *, start: bool = False, end: bool = False) -> str:
    request = InferRequest("m", sequence=SequenceFlags(name, start, end))
    return choice.choose(request, BOTH).version


def test_requests_are_divided_by_the_split() -> None:
    choice = VersionChoice(NINE_TO_ONE)
    counts = Counter(chosen(choice, f"request-{n}") for n in range(10_000))
    assert 850 < counts["2"] < 1150


def test_requests_without_an_id_are_divided_as_well() -> None:
    choice = VersionChoice(NINE_TO_ONE)
    counts = Counter(chosen(choice, "") for _ in range(10_000))
    assert 850 < counts["2"] < 1150


def test_an_id_has_the_same_version_at_every_router() -> None:
    ids = [f"request-{n}" for n in range(200)]
    first, next_router = VersionChoice(NINE_TO_ONE), VersionChoice(NINE_TO_ONE)
    assert [chosen(first, one) for one in ids] == [chosen(next_router, one) for one in reversed(ids)][::-1]


def test_where_the_new_versions_share_grows_no_request_leaves_it() -> None:
    ids = [f"request-{n}" for n in range(2000)]
    before = {one for one in ids if chosen(VersionChoice(NINE_TO_ONE), one) == "2"}
    after = {one for one in ids if chosen(VersionChoice({"1": 1.0, "2": 1.0}), one) == "2"}
    assert before < after


def test_versions_that_do_not_serve_have_no_part() -> None:
    assert {chosen(VersionChoice(NINE_TO_ONE), f"{n}", ("2",)) for n in range(50)} == {"2"}
    assert {chosen(VersionChoice({"7": 1.0}), f"{n}") for n in range(50)} == {"2"}
    assert chosen(VersionChoice(NINE_TO_ONE), "a", ()) == ""


def test_a_version_without_a_share_gets_nothing() -> None:
    choice = VersionChoice({"1": 1.0, "2": 0.0})
    assert {chosen(choice, f"{n}") for n in range(200)} == {"1"}
    choice = VersionChoice({"1": 0.0, "2": 1.0})
    assert {chosen(choice, f"{n}") for n in range(200)} == {"2"}


def test_a_version_that_is_mirrored_to_is_not_the_highest() -> None:
    assert chosen(VersionChoice(None, without="2"), "a") == "1"
    assert chosen(VersionChoice(None, without="2"), "a", ("2",)) == "2"
    assert chosen(VersionChoice(None), "a") == "2"


def test_a_sequence_keeps_the_version_with_which_it_began() -> None:
    choice = VersionChoice({"1": 1.0})
    assert in_sequence(choice, 7, start=True) == "1"
    later = VersionChoice({"2": 1.0})
    later.sequences = choice.sequences
    assert in_sequence(later, 7) == "1"
    assert in_sequence(later, 8, start=True) == "2"
    assert in_sequence(later, 7, end=True) == "1"
    assert list(later.sequences) == [8]
    assert in_sequence(later, 7, start=True) == "2"


def test_a_sequence_that_began_before_the_split_stays_where_it_was() -> None:
    choice = VersionChoice({"2": 1.0}, before="1")
    assert in_sequence(choice, 3) == "1"
    assert in_sequence(choice, 4, start=True) == "2"


def test_the_reason_says_the_share() -> None:
    assert VersionChoice({"2": 1.0}).choose(InferRequest("m", request_id="a"), BOTH).reason == "split: 100 %"
