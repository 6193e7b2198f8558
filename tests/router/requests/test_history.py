"""Records of requests: found by id and by name, and gone without a trace when they are too old."""

from __future__ import annotations

from slipstream.router.requests.history import History, RequestRecord, Timeline


def record(request_id: str, *names: str) -> RequestRecord:
    return RequestRecord(request_id, "", 0, 1, Timeline(0.0), names=names)


def test_of_several_requests_with_a_name_the_latest_is_found() -> None:
    history = History(3)
    first, second = record("a", "trace"), record("b", "trace")
    history.add(first)
    assert history.get("trace") is first
    history.add(second)
    assert history.get("trace") is second
    assert history.get("a") is first


def test_a_name_does_not_hide_the_request_with_that_id() -> None:
    history = History(3)
    own, pretender = record("a"), record("b", "a")
    history.add(own)
    history.add(pretender)
    assert history.get("a") is own


def test_names_fall_out_with_their_record_but_not_with_an_older_one_of_the_same_name() -> None:
    history = History(2)
    third = record("c", "shared")
    for one in (record("a", "shared", "only a"), record("b"), third):
        history.add(one)
    assert len(history) == 2
    assert history.get("a") is history.get("only a") is None
    assert history.get("shared") is third
    history.add(record("d"))
    history.add(record("e"))
    assert history.get("shared") is None
    assert not history._by_name


def test_an_id_that_comes_again_takes_the_place_of_the_old_record() -> None:
    history = History(2)
    again = record("a", "new")
    for one in (record("a", "old"), record("b"), again):
        history.add(one)
    assert len(history) == 2
    assert history.get("a") is history.get("new") is again
    assert history.get("old") is None
    assert history.get("b") is not None


def test_a_request_that_replaces_another_displaces_no_third() -> None:
    history = History(3)
    for number in range(3):
        history.add(RequestRecord(f"r{number}", "", 0, 1, Timeline(float(number)), names=(f"n{number}",)))
    for number in range(3, 10):
        history.add(RequestRecord(f"r{number}", "", 0, 1, Timeline(float(number))), replaces=f"r{number - 1}")
    assert [record.request_id for record in history.latest()] == ["r9", "r1", "r0"]
    assert history.get("n2") is None
