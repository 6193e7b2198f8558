"""Running answers that move to where they are faster, event by event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress
from slipstream.router.config.router_config import MigrationConfig, SloConfig
from slipstream.router.observability.explain.explain import explanation
from slipstream.router.observability.explain.explain_table import table
from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Failed,
    Frozen,
    HandedOff,
    Migrate,
    Reserved,
    Resume,
    StepTime,
    StepTimes,
)
from tests.support.router.dispatcher_lab import CONFIG, Lab

A, B = PeerId("a", 1), PeerId("b", 1)
NUM = 12


def crowded(**migration: Any) -> Any:
    """Twelve answers of 200 tokens run on A, where a step takes 10 ms and 5 ms a sequence, so that their level is at
    stake; B has just joined."""
    slo = SloConfig(itl_ms=30)
    lab: Any = Lab(replace(CONFIG, max_queued_requests=NUM, slo=slo, migration=MigrationConfig(**migration)))
    lab.join(A, "decode", slots=16, pages=1000)
    for number in range(NUM):
        lab.submit(f"r{number}", max_tokens=200, expected_output_tokens=200)
        lab.chunk(A, f"r{number}", 0, 100)
    samples = [StepTime(0, 0, num, num * 10, 0.01 + 0.005 * num) for num in (1, 2, 4, 8) for _ in range(20)]
    lab.say(A, StepTimes(tuple(samples)))
    lab.take()
    lab.join(B, "decode", slots=16, pages=1000)
    lab.tick(1.0)
    return lab


def adopted(lab: Any) -> list[Any]:
    return [message for worker, kind, message in lab.sent() if kind is Adopt and worker == B]


def finish_move(lab: Any, adopt: Any) -> None:
    """B takes over what it was asked for."""
    request_id, attempt = adopt.request.request_id, adopt.request.attempt
    ticket = HandoffTicket(attempt, B, (TransferAddress("h", 2),), 0, 1, 8, 2, 2, 64)
    lab.say(B, Reserved(request_id, attempt, 0, ticket))
    lab.say(A, Frozen(request_id, 0, lab.dispatcher.history.get(request_id).usage.num_output_tokens))
    lab.say(B, HandedOff(request_id, attempt, 1000, 0.01))


def test_a_worker_that_joins_gets_answers_of_a_crowded_one_as_many_at_a_time_as_may_move() -> None:
    lab = crowded()
    first = adopted(lab)
    assert len(first) == 2  # `max_at_once`
    for adopt in first:
        finish_move(lab, adopt)
    lab.take()
    lab.tick(2.0)
    assert len(adopted(lab)) == 2
    assert lab.dispatcher.snapshot(lab.now).totals.num_rebalanced == 4


def test_it_ends_when_both_are_about_as_fast() -> None:
    lab = crowded()
    num_moved = 0
    for at_s in range(2, 20):
        for adopt in adopted(lab):
            num_moved += 1
            finish_move(lab, adopt)
        lab.take()
        lab.tick(float(at_s))
    assert 3 <= num_moved <= 6
    assert adopted(lab) == []


def test_the_story_says_what_for() -> None:
    lab = crowded()
    [adopt, _] = adopted(lab)
    described = explanation(lab.dispatcher.history.get(adopt.request.request_id), 0.0)
    [why] = [event["detail"] for event in described["events"] if event["detail"].startswith("to move from a to b")]
    assert "ms a step, saves" in why
    assert why in table(described)


def test_what_has_moved_stays_until_it_is_twice_as_long() -> None:
    lab = crowded()
    for adopt in adopted(lab):
        finish_move(lab, adopt)
    lab.take()
    moved = [number for number in range(NUM) if lab.dispatcher.history.get(f"r{number}").decode_name == "b"]
    assert len(moved) == 2
    for number in range(NUM):
        if number not in moved:
            lab.chunk(A, f"r{number}", 1, 101, finish="stop")  # and so A would be faster again
    lab.submit("more", max_tokens=200)
    lab.take()
    lab.tick(2.0)
    assert [kind for kind in lab.kinds() if kind[1] is Adopt] == []


def test_without_room_nothing_is_asked_and_nobody_waits_for_it() -> None:
    lab = crowded()
    for adopt in adopted(lab):
        lab.say(B, Failed(adopt.request.request_id, adopt.request.attempt, "no pages", True))
    assert adopted(lab) == []
    lab.tick(1.1)
    assert adopted(lab) == [], "a wish that was optional has been forgotten"
    assert lab.dispatcher.num_requests == NUM


def test_where_the_source_drains_meanwhile_the_answer_leaves_it_all_the_same() -> None:
    lab = crowded()
    [adopt, _] = adopted(lab)
    lab.join(PeerId("c", 1), "decode", slots=16, pages=1000)
    lab.do(lab.dispatcher.drain(A, lab.now))
    lab.take()
    lab.say(B, Failed(adopt.request.request_id, adopt.request.attempt, "it broke", False))
    again = [(w, m) for w, kind, m in lab.sent() if kind is Adopt and m.request.request_id == adopt.request.request_id]
    assert [worker.name for worker, _ in again] == ["c"]


def test_a_move_that_fails_leaves_the_answer_where_it_is() -> None:
    lab = crowded()
    [adopt, _] = adopted(lab)
    request_id, attempt = adopt.request.request_id, adopt.request.attempt
    lab.say(B, Reserved(request_id, attempt, 0, HandoffTicket(1, B, (TransferAddress("h", 2),), 0, 1, 8, 2, 2, 64)))
    assert (A, Migrate) in lab.kinds()
    lab.say(B, Failed(request_id, attempt, "it broke", False))
    assert (A, Resume) in lab.kinds()
    lab.chunk(A, request_id, 1, 101)
    assert lab.dispatcher.history.get(request_id).usage.num_output_tokens == 2


@pytest.mark.parametrize("migration", [{"rebalance": False}])
def test_it_can_be_turned_off(migration: dict[str, Any]) -> None:
    lab = crowded(**migration)
    for at_s in range(2, 5):
        lab.tick(float(at_s))
    assert [kind for _, kind in lab.kinds() if kind in (Adopt, Migrate, Cancel)] == []
