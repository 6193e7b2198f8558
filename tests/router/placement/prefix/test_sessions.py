"""Where conversations ran last."""

from __future__ import annotations

from slipstream.router.placement.prefix.sessions import Sessions
from tests.router.placement.prefix.test_prefix_index import make_worker


def test_a_conversation_is_found_where_it_ran_last_by_role_and_tenant() -> None:
    sessions = Sessions()
    a, b, p = make_worker("a"), make_worker("b"), make_worker("p", "prefill")
    for worker in (a, b, p):
        sessions.add(worker)
    sessions.note("chat", a)
    sessions.note("chat", p)
    sessions.note("chat", b, tenant="other")
    assert sessions.worker_of("chat", "decode") is a
    assert sessions.worker_of("chat", "prefill") is p
    assert sessions.worker_of("chat", "decode", "other") is b
    assert sessions.worker_of("chat", "prefill", "other") is None
    sessions.note("chat", b)
    assert sessions.worker_of("chat", "decode") is b


def test_requests_without_a_conversation_are_not_remembered() -> None:
    sessions = Sessions()
    worker = make_worker()
    sessions.add(worker)
    sessions.note("", worker)
    assert len(sessions) == 0
    assert sessions.worker_of("", "decode") is None


def test_a_worker_that_is_gone_or_drains_is_not_named_and_one_that_comes_back_is() -> None:
    sessions = Sessions()
    worker, anew = make_worker(), make_worker()
    sessions.add(worker)
    sessions.note("chat", worker)
    worker.draining = True
    assert sessions.worker_of("chat", "decode") is None
    sessions.remove(worker)
    sessions.add(anew)
    sessions.remove(worker)
    assert sessions.worker_of("chat", "decode") is anew
    sessions.remove(anew)
    assert sessions.worker_of("chat", "decode") is None


def test_the_least_recently_used_conversation_is_forgotten_first() -> None:
    sessions = Sessions(capacity=2)
    worker = make_worker()
    sessions.add(worker)
    for name in ("one", "two", "one", "three"):
        sessions.note(name, worker)
    assert len(sessions) == 2
    assert [sessions.worker_of(name, "decode") for name in ("one", "two", "three")] == [worker, None, worker]
