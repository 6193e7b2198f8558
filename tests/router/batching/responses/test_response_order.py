"""Responses leave in the order of their requests."""

from __future__ import annotations

from slipstream.router.batching.responses.response_order import ResponseOrder


def ordered(*requests: str) -> ResponseOrder[str, str]:
    order: ResponseOrder[str, str] = ResponseOrder()
    for request in requests:
        order.expect(request)
    return order


def test_a_response_waits_for_those_of_earlier_requests() -> None:
    order = ordered("a", "b", "c")
    assert order.respond("c", "3", is_final=True) == []
    assert order.respond("b", "2", is_final=True) == []
    assert order.respond("a", "1", is_final=True) == [("a", "1"), ("b", "2"), ("c", "3")]
    assert order.num_expected == 0


def test_the_first_request_gets_each_of_its_responses_at_once() -> None:
    order = ordered("a", "b")
    assert order.respond("b", "x", is_final=False) == []
    assert order.respond("a", "1", is_final=False) == [("a", "1")]
    assert order.respond("a", "2", is_final=True) == [("a", "2"), ("b", "x")]
    assert order.respond("b", "y", is_final=True) == [("b", "y")]


def test_a_request_that_fails_holds_up_no_other() -> None:
    order = ordered("a", "b", "c")
    assert order.respond("b", "2", is_final=True) == []
    assert order.drop("a") == [("b", "2")]
    assert order.respond("c", "3", is_final=True) == [("c", "3")]
    assert order.num_expected == 0


def test_what_a_failed_request_had_been_given_is_not_lost() -> None:
    order = ordered("a", "b")
    assert order.respond("b", "part", is_final=False) == []
    assert order.drop("b") == [("b", "part")]


def test_tenants_do_not_wait_for_each_other() -> None:
    order = ordered("a")
    order.expect("z", "other")
    assert order.respond("z", "1", is_final=True, tenant="other") == [("z", "1")]
