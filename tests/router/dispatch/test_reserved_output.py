"""Decode workers that take a sequence only with pages for its whole answer (`Hello.reserves_output`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import MigrationConfig, PolicyName
from slipstream.router.placement.policies.estimate import estimate_decode
from slipstream.router.protocol.messages import Adopt, Credits, Drain, Generate, Reserve
from slipstream.router.registry.capacity import decode_charge, fits_decode
from slipstream.router.registry.worker_registry import WorkerState
from tests.support.router.dispatcher_lab import CONFIG, Lab
from tests.support.router.greetings import make_hello
from tests.support.router.placed_workers import job, run_streams, worker

A, B, D, P = PeerId("a", 1), PeerId("b", 1), PeerId("d", 1), PeerId("p", 1)
PAGE_TOKENS = 16


def reserving(name: str = "d", **fields: Any) -> WorkerState:
    state = worker("decode", name, **fields)
    state.hello = replace(state.hello, reserves_output=True)
    return state


def join(lab: Any, peer: PeerId, pages: int, free_pages: int | None = None) -> None:
    hello = make_hello(peer, "decode", num_pages=pages, max_slots=4, max_queued_tokens=1000, reserves_output=True)
    lab.do(lab.dispatcher.worker_joined(hello, lab.now))
    lab.say(peer, Credits(0, 4, pages if free_pages is None else free_pages, 1000))


def test_a_sequence_is_charged_for_its_whole_answer_only_where_that_is_reserved() -> None:
    assert decode_charge(worker("decode", "d"), 32, 132).pages == 3
    assert decode_charge(reserving(), 32, 132).pages == 9
    assert decode_charge(reserving(max_model_len=64), 32, 132).pages == 4, "the context ends before the answer"
    assert decode_charge(reserving(pages=8), 32, 132).pages == 8, "no more than there are"


def test_a_sequence_fits_if_its_whole_answer_does() -> None:
    state = reserving(free=(4, 8, 1000))
    assert fits_decode(state, 32, 128)
    assert not fits_decode(state, 32, 129)


def test_nothing_is_expected_to_give_way_where_output_is_reserved() -> None:
    """A worker that is nearly full of long answers: without reservation, some will have to be computed again."""
    plain, sure = worker("decode", "d", pages=200), reserving(pages=200)
    for state in (plain, sure):
        run_streams(state, 4, remaining=2000.0)
    request = replace(job(100, 2000), most_tokens=2100)
    assert estimate_decode(plain, request, 0.0).overflow_s > 0.0
    assert estimate_decode(sure, request, 0.0).overflow_s == 0.0
    assert not estimate_decode(sure, request, 0.0).fits


@pytest.mark.parametrize("policy", ["slo", "kv", "least_loaded", "round_robin", "isl_threshold"])
def test_a_request_waits_until_its_whole_answer_has_room(policy: PolicyName) -> None:
    lab = Lab(replace(CONFIG, policy=policy))
    join(lab, D, pages=100, free_pages=6)
    lab.submit("long", num_prompt=5, max_tokens=100)
    assert lab.sent() == []
    lab.submit("short", num_prompt=5, max_tokens=50)
    [(_, kind, message)] = lab.sent()
    assert (kind, message.request.request_id) == (Generate, "short")
    lab.say(D, Credits(1, 3, 7, 1000))
    [(_, kind, message)] = lab.sent()
    assert (kind, message.request.request_id) == (Generate, "long")


def test_two_requests_are_not_sent_for_the_same_pages() -> None:
    lab = Lab()
    join(lab, D, pages=100, free_pages=10)
    lab.join(P, "prefill")
    lab.submit("a", num_prompt=40, max_tokens=60)
    lab.submit("b", num_prompt=40, max_tokens=60)
    assert [kind for _, kind, _ in lab.sent()] == [Reserve]


@pytest.mark.parametrize("precopy_pages", [2, 100])
def test_a_sequence_moves_only_where_its_whole_answer_has_room(precopy_pages: int) -> None:
    lab = Lab(replace(CONFIG, migration=MigrationConfig(precopy_pages=precopy_pages)))
    lab.join(A, "decode")
    lab.submit("r", num_prompt=80, max_tokens=400)
    lab.chunk(A, "r", 0, 100)
    join(lab, B, pages=100, free_pages=29)
    lab.take()
    lab.do(lab.dispatcher.drain(A, lab.now))
    assert lab.kinds() == [(A, Drain)]
    lab.say(B, Credits(0, 4, 30, 1000))
    lab.tick(lab.now + 0.1)
    assert lab.kinds() == [(B, Adopt)]
    assert lab.dispatcher.registry.get(B).ledger.free_pages == 0
