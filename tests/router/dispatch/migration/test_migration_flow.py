"""Running sequences that move between decode workers, event by event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.config.router_config import MigrationConfig
from slipstream.router.dispatch.table.actions import Emit, Finish
from slipstream.router.observability.explain.explain import explanation
from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Copied,
    Credits,
    Drain,
    Failed,
    Frozen,
    Generate,
    HandedOff,
    Migrate,
    PeerLost,
    Reserve,
    Reserved,
    Resume,
    Start,
    unpack_ids,
)
from tests.support.router import dispatcher_lab
from tests.support.router.dispatcher_lab import CONFIG, Lab

A, B, C, P = PeerId("a", 1), PeerId("b", 1), PeerId("c", 1), PeerId("p", 1)


def ticket(number: int = 1, destination: PeerId = B, num_pages: int = 2) -> HandoffTicket:
    return dispatcher_lab.ticket(number, destination, num_pages)


def make_lab(**migration: Any) -> Any:
    return Lab(replace(CONFIG, migration=MigrationConfig(**migration)))


@pytest.fixture
def lab() -> Any:
    """A request with two tokens runs on A; B is there, too."""
    return running(make_lab())


def running(lab: Any, num_prompt: int = 5) -> Any:
    lab.join(A, "decode")
    lab.submit("r", num_prompt=num_prompt)
    lab.chunk(A, "r", 0, 100)
    lab.chunk(A, "r", 1, 101)
    lab.join(B, "decode")
    lab.take()
    return lab


def to(phase: str, lab: Any) -> None:
    """Drains A, up to a phase of the move to B."""
    lab.do(lab.dispatcher.drain(A, lab.now))
    if phase in ("freezing", "starting"):
        lab.say(B, Reserved("r", 1, 0, ticket()))
    if phase == "starting":
        lab.say(A, Frozen("r", 0, 2))
    lab.take()


def results(lab: Any) -> dict[str, int]:
    return dict(lab.dispatcher.snapshot(lab.now).totals.migrations)


def test_a_draining_worker_hands_its_sequence_over_and_no_token_is_missing_or_there_twice(lab: Any) -> None:
    lab.do(lab.dispatcher.drain(A, lab.now, next_role="prefill"))
    [(_, _, drain), (worker, _, adopt)] = lab.sent()
    assert drain == Drain("prefill")
    assert (worker, adopt.source, adopt.source_tp, adopt.request.attempt) == (B, A, 1, 1)
    assert unpack_ids(adopt.request.output_ids) == [100, 101]
    assert adopt.num_room_tokens == 8  # all that it may still say
    lab.say(B, Reserved("r", 1, 0, ticket()))
    [(worker, _, migrate)] = lab.sent()
    assert (worker, migrate) == (A, Migrate("r", 0, 1, ticket(), True))
    lab.chunk(A, "r", 2, 102)  # the step that was under way
    lab.now = 1.0
    lab.say(A, Frozen("r", 0, 3))
    assert lab.take()[1].message == Start("r", 1, (102,))
    lab.say(B, HandedOff("r", 1, 1000, 0.1))
    assert [(w, m) for w, _, m in lab.sent()] == [(A, Cancel("r", 0))]
    lab.now = 1.25
    lab.chunk(A, "r", 3, 999, attempt=0)  # it is ignored by now
    lab.chunk(B, "r", 3, 103, attempt=1, finish="stop")
    emit, finish = lab.take()
    assert isinstance(emit, Emit)
    assert isinstance(finish, Finish)
    assert (emit.token_ids, finish.finish.usage.num_output_tokens) == ((103,), 4)
    assert results(lab) == {"moved": 1}
    pauses = lab.dispatcher.snapshot(lab.now).totals.migration_pauses
    assert (sum(pauses.counts), pauses.total_s) == (1, 0.25)
    assert lab.dispatcher.snapshot(lab.now).totals.retries == {}


def test_the_story_tells_of_the_move(lab: Any) -> None:
    to("starting", lab)
    lab.say(B, HandedOff("r", 1, 1000, 0.1))
    lab.chunk(B, "r", 2, 102, attempt=1)
    described = explanation(lab.dispatcher.history.get("r"), 0.0)
    assert (described["decode"], described["num_attempts"]) == ("b", 1)
    assert [(one["attempt"], one["decode"], one["failure"]) for one in described["attempts"]] == [
        (0, "a", None),
        (1, "b", None),
    ]
    assert described["why"].endswith("; moved to b since")
    details = [event["detail"] for event in described["events"]]
    assert "to move from a to b" in details
    assert "moved from a to b: 1000 bytes in 1 rounds" in details
    assert details[-1].startswith("continues after a pause of ")


def test_what_is_long_is_copied_while_it_decodes_and_only_the_rest_while_it_stands_still() -> None:
    lab = running(make_lab(precopy_pages=2), num_prompt=80)  # five pages of 16 tokens
    lab.do(lab.dispatcher.migrate("r", lab.now))
    [(_, _, adopt)] = lab.sent()
    assert adopt.num_room_tokens == 0
    lab.say(B, Reserved("r", 1, 0, ticket(1, num_pages=5)))
    assert lab.sent() == [(A, Migrate, Migrate("r", 0, 1, ticket(1, num_pages=5), False))]
    for index in range(2, 5):
        lab.chunk(A, "r", index, 100 + index)
    lab.take()
    lab.say(B, Copied("r", 1, 1, 5000, 0.5))
    lab.say(B, Copied("r", 1, 1, 5000, 0.5))  # said twice
    [(_, _, extend)] = lab.sent()
    assert (extend.token_ids, extend.seq) == ((102, 103, 104), adopt.seq + 1)
    assert extend.num_room_tokens == 5
    lab.say(B, Reserved("r", 1, 0, ticket(1, num_pages=5)))  # an old one once more
    assert lab.sent() == []
    lab.say(B, Reserved("r", 1, 0, ticket(2)))
    assert lab.sent() == [(A, Migrate, Migrate("r", 0, 1, ticket(2), True))]
    lab.say(B, HandedOff("r", 1, 700, 0.1))  # its pages are there before the source's word is
    assert lab.sent() == []
    lab.say(A, Frozen("r", 0, 5))
    assert lab.sent() == [(B, Start, Start("r", 1, ())), (A, Cancel, Cancel("r", 0))]


def test_where_there_is_no_room_it_waits_and_goes_on_where_it_is() -> None:
    lab = make_lab()
    lab.join(A, "decode")
    lab.submit("r")
    lab.chunk(A, "r", 0, 100)
    lab.join(B, "decode", credit=False)
    lab.take()
    lab.do(lab.dispatcher.drain(A, lab.now))
    lab.chunk(A, "r", 1, 101)
    assert lab.kinds() == [(A, Drain)]
    lab.say(B, Credits(0, 1, 10, 100))
    assert lab.kinds() == [(B, Adopt)]


def test_without_migrate_it_ends_where_it_is(lab: Any) -> None:
    lab.do(lab.dispatcher.drain(A, lab.now, migrate=False))
    lab.chunk(A, "r", 2, 102, finish="stop")
    assert lab.kinds() == [(A, Drain)]
    assert lab.phase("r") == "finished"


def test_only_so_many_leave_a_worker_at_once() -> None:
    lab = make_lab(max_at_once=1)
    lab.join(A, "decode")
    for request_id in ("r", "s"):
        lab.submit(request_id)
        lab.chunk(A, request_id, 0, 100)
    lab.join(B, "decode")
    lab.take()
    lab.do(lab.dispatcher.drain(A, lab.now))
    assert lab.kinds() == [(A, Drain), (B, Adopt)]
    lab.chunk(A, "r", 1, 101, finish="stop")
    assert lab.kinds() == [(B, Cancel), (B, Adopt)]


@pytest.mark.parametrize("phase", ["reserving", "freezing", "starting"])
def test_a_destination_that_dies_changes_nothing_for_the_source_but_that_it_goes_on(lab: Any, phase: str) -> None:
    to(phase, lab)
    lab.do(lab.dispatcher.worker_lost(B, lab.now))
    has_ticket = phase != "reserving"
    assert lab.sent() == [(A, PeerLost, PeerLost(B)), *([(A, Resume, Resume("r", 0))] if has_ticket else [])]
    lab.chunk(A, "r", 2, 102, finish="stop")
    assert results(lab) == {"lost": 1}
    assert lab.dispatcher.history.get("r").usage.num_output_tokens == 3


@pytest.mark.parametrize("phase", ["reserving", "freezing"])
def test_a_source_that_dies_before_it_stood_still_is_like_any_other_worker_that_dies(lab: Any, phase: str) -> None:
    to(phase, lab)
    lab.do(lab.dispatcher.worker_lost(A, lab.now))
    sent = lab.sent()
    assert [(worker, kind) for worker, kind, _ in sent] == [(B, PeerLost), (B, Cancel), (B, Generate)]
    assert (sent[1][2], sent[2][2].request.attempt) == (Cancel("r", 1), 2)
    assert unpack_ids(sent[2][2].request.output_ids) == [100, 101]


@pytest.mark.parametrize("how", ["lost", "failed"])
def test_a_source_that_is_gone_after_it_has_stood_still_is_not_needed_any_more(lab: Any, how: str) -> None:
    to("starting", lab)
    if how == "lost":
        lab.do(lab.dispatcher.worker_lost(A, lab.now))
    else:
        lab.say(A, Failed("r", 0, "the worker stops", True))
    assert Cancel not in [kind for _, kind in lab.kinds()]
    assert lab.phase("r") == "transfer"
    lab.say(B, HandedOff("r", 1, 1000, 0.1))
    lab.chunk(B, "r", 2, 102, attempt=1, finish="stop")
    assert lab.dispatcher.history.get("r").finish.reason == "stop"


def test_a_source_that_is_gone_before_its_pages_have_come_costs_an_attempt(lab: Any) -> None:
    to("starting", lab)
    lab.do(lab.dispatcher.worker_lost(A, lab.now))
    lab.say(B, Failed("r", 1, "pages did not arrive", True))
    assert [message.request.attempt for _, kind, message in lab.sent() if kind is Generate] == [2]


def test_a_destination_that_refuses_or_a_transfer_that_fails_leaves_it_where_it_is_and_others_are_tried(
    lab: Any,
) -> None:
    to("reserving", lab)
    lab.say(B, Failed("r", 1, "no pages", True))
    assert lab.sent() == []  # until it has reported new credits
    lab.say(B, Credits(1, 4, 100, 1000))
    assert lab.kinds() == [(B, Adopt)]
    lab.say(B, Reserved("r", 2, 0, ticket(2)))
    lab.say(A, Frozen("r", 0, 2))
    lab.take()
    lab.say(B, Failed("r", 2, "a wrong checksum", True))
    assert lab.sent() == [(A, Resume, Resume("r", 0))]
    lab.join(C, "decode")
    assert lab.kinds() == [(C, Adopt)]
    assert results(lab) == {"refused": 1, "failed": 1}


def test_a_sequence_does_not_leave_over_a_link_that_is_known_to_be_cut(lab: Any) -> None:
    to("freezing", lab)
    lab.say(A, Failed("r", 1, "pages could not be sent: b is lost: no answer within 5 s", True, True))
    lab.take()
    assert lab.dispatcher.snapshot(lab.now).closed_links == (("a", "b"),)
    lab.join(C, "decode")
    assert Adopt in [kind for worker, kind in lab.kinds() if worker == C]


def test_a_source_that_cannot_send_gets_a_word_that_it_goes_on_and_the_destination_one_that_it_is_off(lab: Any) -> None:
    to("freezing", lab)
    lab.say(A, Failed("r", 1, "it has outgrown its ticket", True))
    sent = lab.sent()
    assert sent[:2] == [(B, Cancel, Cancel("r", 1)), (A, Resume, Resume("r", 0))]
    assert sent[2][2].request.attempt == 2  # another try, with more room


@pytest.mark.parametrize("phase", ["reserving", "freezing", "starting"])
def test_a_client_that_leaves_in_the_middle_reaches_both(lab: Any, phase: str) -> None:
    to(phase, lab)
    lab.do(lab.dispatcher.cancel("r", lab.now))
    assert {(worker, message) for worker, _, message in lab.sent()} == {(B, Cancel("r", 1)), (A, Cancel("r", 0))}


def test_an_end_at_the_source_ends_it_at_the_destination(lab: Any) -> None:
    to("freezing", lab)
    lab.chunk(A, "r", 2, 102, finish="stop")
    assert lab.sent() == [(B, Cancel, Cancel("r", 1))]
    lab.say(A, Failed("r", 1, "it does not decode here", True))  # what it answers to Migrate
    assert results(lab) == {"ended": 1}


@pytest.mark.parametrize(("phase", "timeout_s"), [("reserving", 60.0), ("starting", 5.0)])
def test_what_takes_too_long_is_called_off(lab: Any, phase: str, timeout_s: float) -> None:
    to(phase, lab)
    assert lab.dispatcher.next_deadline() == timeout_s
    lab.tick(timeout_s)
    resumed = [(A, Resume)] if phase == "starting" else []
    assert lab.kinds() == [(B, Cancel), *resumed]
    lab.say(B, HandedOff("r", 1, 1000, 0.1))  # too late
    lab.chunk(A, "r", 2, 102)
    assert results(lab) == {"timed_out": 1}


def test_a_source_whose_count_is_another_goes_on_itself(lab: Any) -> None:
    to("freezing", lab)
    lab.say(A, Frozen("r", 0, 7))
    assert lab.kinds() == [(B, Cancel), (A, Resume)]
    assert results(lab) == {"failed": 1}


def test_a_destination_that_is_to_drain_itself_gets_nothing_more(lab: Any) -> None:
    to("reserving", lab)
    lab.join(C, "decode")
    lab.take()
    lab.do(lab.dispatcher.drain(B, lab.now))
    assert lab.kinds() == [(B, Drain), (B, Cancel), (C, Adopt)]


def test_it_goes_where_it_was_asked_to_go() -> None:
    lab = running(make_lab())
    lab.join(C, "decode", slots=64, pages=1000)
    lab.take()
    lab.do(lab.dispatcher.migrate("r", lab.now, to=B))
    assert lab.kinds() == [(B, Adopt)]
    lab.do(lab.dispatcher.migrate("missing", lab.now))
    assert lab.kinds() == []


def test_an_answer_that_would_end_earlier_there_does_not_go_there() -> None:
    lab = make_lab()
    lab.join(A, "decode")
    lab.submit("r")
    lab.chunk(A, "r", 0, 100)
    lab.join(B, "decode", max_model_len=10)
    lab.take()
    lab.do(lab.dispatcher.drain(A, lab.now))
    assert lab.kinds() == [(A, Drain)]


def test_what_only_waits_on_a_draining_worker_goes_elsewhere_and_that_is_no_failure() -> None:
    lab = make_lab()
    lab.join(A, "decode")
    lab.join(P, "prefill")
    lab.submit("long", num_prompt=20)
    lab.submit("first", num_prompt=5)
    lab.submit("second", num_prompt=5)
    assert [kind for _, kind in lab.kinds()] == [Reserve, Generate, Generate]
    lab.join(B, "decode")
    lab.take()
    lab.do(lab.dispatcher.drain(A, lab.now))
    sent = [(worker, kind, m.request.request_id) for worker, kind, m in lab.sent() if kind in (Generate, Reserve)]
    assert sorted(sent, key=str) == sorted([(B, Generate, "second"), (B, Reserve, "long")], key=str)
    assert lab.dispatcher.snapshot(lab.now).totals.retries == {"worker_drained": 2}
    lab.chunk(A, "first", 0, 100)  # its prompt was being computed: now that it decodes it leaves
    assert lab.kinds() == [(B, Adopt)]
