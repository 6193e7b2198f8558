"""Requests that no worker has room for are not rated with every message, and not a moment late when there is room."""

import pytest

from slipstream.router.placement.hold_policy import RATED_AGAIN_S, HoldPolicy
from slipstream.router.placement.placed_request import PlacedRequests
from slipstream.router.protocol.messages import Credits
from slipstream.router.registry.credits import Charge
from slipstream.router.registry.worker_registry import WorkerRegistry
from slipstream.router.requests.placement_decision import Wait
from tests.support.router.placed_workers import PAGE_TOKENS, request, worker


@pytest.fixture
def pair():
    registry = WorkerRegistry()
    decode, group = worker("decode", "d", pages=100), worker("prefill", "p", pages=100, tokens=1000)
    registry.add(decode)
    registry.add(group)
    return registry, decode, group


def test_who_was_told_to_wait_waits_until_a_worker_of_the_side_it_lacks_can_take_it(pair):
    registry, decode, group = pair
    holds, state, wait = HoldPolicy(registry, PlacedRequests()), request(500), Wait("prefill")
    assert holds.request_hold(state, 0.0) is None
    group.ledger.spend(Charge(tokens=600))
    holds.hold_request(state, wait, 0.0)
    assert holds.request_hold(state, 0.01) is wait
    decode.ledger.report(Credits(0, 64, 100, 1000))
    assert holds.request_hold(state, 0.01) is wait
    group.ledger.report(Credits(1, 64, 100, 499))
    assert holds.request_hold(state, 0.01) is wait
    group.ledger.report(Credits(1, 64, 100, 500))
    assert holds.request_hold(state, 0.01) is None


def test_it_is_rated_again_after_a_while_and_more_and_more_rarely(pair):
    registry, _, group = pair
    holds, state, wait = HoldPolicy(registry, PlacedRequests()), request(500), Wait("prefill")
    group.ledger.spend(Charge(tokens=600))
    holds.hold_request(state, wait, 0.0)
    assert holds.request_hold(state, RATED_AGAIN_S) is None
    holds.hold_request(state, wait, 1.0)
    assert holds.request_hold(state, 1.0 + 1.5 * RATED_AGAIN_S) is wait
    assert holds.request_hold(state, 1.0 + 2.0 * RATED_AGAIN_S) is None
    state.begin_next_attempt()
    assert holds.request_hold(state, 1.01) is None


def test_one_that_waits_for_a_better_worker_looks_at_that_one_alone_and_no_longer_than_it_may(pair):
    registry, decode, _ = pair
    other = worker("decode", "other")
    registry.add(other)
    placed = PlacedRequests()
    holds, state = HoldPolicy(registry, placed), request(100)
    wait = Wait("decode", 0.02, decode)
    decode.ledger.spend(Charge(pages=100))
    holds.hold_request(state, wait, 0.0)
    placed.of(state).wait_until_s = 0.02
    assert holds.request_hold(state, 0.01) is wait
    assert holds.request_hold(state, 0.02) is None
    decode.ledger.report(Credits(1, 64, 100, 1000))
    assert holds.request_hold(state, 0.01) is None


def test_a_queue_that_stands_still_is_looked_at_when_it_changes_or_the_smallest_fits(pair):
    registry, _, group = pair
    holds, wait = HoldPolicy(registry, PlacedRequests()), Wait("prefill")
    waiting = [(request(900), wait), (request(500), wait)]
    group.ledger.spend(Charge(tokens=600))
    for state, _ in waiting:
        holds.hold_request(state, wait, 0.0)
    holds.hold_queue("", 7, 3.0, waiting, True, 0.0)
    found = holds.queue_hold("", 7, 0.01)
    assert found is not None
    assert found.wake_s == 3.0
    assert holds.queue_hold("", 8, 0.01) is None
    assert holds.queue_hold("other", 7, 0.01) is None
    assert holds.queue_hold("", 7, 2 * RATED_AGAIN_S) is None
    group.ledger.report(Credits(1, 64, 100, 500))
    assert holds.queue_hold("", 7, 0.01) is None


def test_without_any_decode_room_the_first_page_that_is_free_counts(pair):
    registry, decode, _ = pair
    holds = HoldPolicy(registry, PlacedRequests())
    decode.ledger.spend(Charge(pages=100))
    holds.hold_queue("", 1, None, [], False, 0.0)
    assert holds.queue_hold("", 1, 0.5) is not None
    decode.ledger.report(Credits(1, 64, 1, 0))
    assert holds.queue_hold("", 1, 0.5) is None
    assert decode.pages_for(PAGE_TOKENS - 1) == 1
