from __future__ import annotations

from slipstream.router.placement.retention.paused_sessions import GONE_S, MAX_NEW_BLOCKS, PausedSession, PausedSessions


def paused(request_id: str, *blocks: int, ended_s: float = 0.0) -> PausedSession:
    return PausedSession(request_id, "", 100, ended_s, (), blocks, "tool")


def test_a_conversation_is_found_by_the_end_of_its_last_prompt_once() -> None:
    sessions = PausedSessions()
    sessions.add(paused("a", 3, 4))
    assert sessions.take([1, 2, 5, 6]) is None
    found = sessions.take([1, 2, 3, 4, 7, 8])
    assert found is not None
    assert found.request_id == "a"
    assert sessions.take([1, 2, 3, 4, 7, 8]) is None
    assert len(sessions) == 0


def test_it_is_found_although_the_last_block_is_rendered_anew() -> None:
    sessions = PausedSessions()
    sessions.add(paused("a", 3, 4))
    found = sessions.take([1, 2, 3, 9])
    assert found is not None
    assert found.request_id == "a"


def test_of_two_with_the_same_prompt_the_later_one_is_found() -> None:
    sessions = PausedSessions()
    sessions.add(paused("a", 3))
    sessions.add(paused("b", 3))
    found = sessions.take([3, 4])
    assert found is not None
    assert found.request_id == "b"
    assert sessions.get("a") is not None


def test_only_so_much_of_a_prompt_is_looked_through() -> None:
    sessions = PausedSessions()
    sessions.add(paused("a", 1))
    assert sessions.take([1, *range(100, 100 + MAX_NEW_BLOCKS)]) is None
    assert sessions.take([1, *range(100, 99 + MAX_NEW_BLOCKS)]) is not None


def test_those_that_do_not_come_back_are_told_in_order() -> None:
    sessions = PausedSessions()
    for number in range(3):
        sessions.add(paused(str(number), number, ended_s=float(number)))
    assert [session.request_id for session in sessions.expire(GONE_S + 1.5)] == ["0", "1"]
    assert sessions.take([0]) is None
    assert sessions.take([2]) is not None


def test_the_table_is_bounded_and_the_oldest_leave() -> None:
    sessions = PausedSessions(capacity=2)
    for number in range(3):
        sessions.add(paused(str(number), number))
    assert len(sessions) == 2
    assert sessions.take([0]) is None
