"""Attempts that fail, workers that are lost and workers that drain: what becomes of their requests."""

import pytest

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.dispatch.table.actions import Emit, Finish, Send
from slipstream.router.dispatch.table.request_table import MAX_REFUSALS
from slipstream.router.protocol.generation import (
    GenerationError,
    Usage,
)
from slipstream.router.protocol.messages import (
    Cancel,
    Credits,
    Drain,
    Failed,
    Generate,
    HandedOff,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    Stats,
    pack_ids,
)
from tests.support.router.dispatcher_lab import CONFIG, D, P, ticket, to_prefill


def test_a_retry_carries_the_tokens_so_far_and_stands_in_front(lab):
    lab.join(D, "decode", slots=1)
    lab.submit("r")
    lab.submit("next")
    lab.chunk(D, "r", 0, 100, 101)
    lab.take()
    lab.say(D, Failed("r", 0, "out of memory", True))
    assert lab.take() == []  # it holds nothing there any more: no Cancel
    lab.say(D, Credits(1, 1, 100, 0))
    [(_, _, message)] = lab.sent()
    assert (message.request.request_id, message.request.attempt) == ("r", 1)
    assert message.request.output_ids == pack_ids([100, 101])
    lab.chunk(D, "r", 0, 100, attempt=0)
    assert lab.take() == []
    lab.chunk(D, "r", 2, 102, attempt=1, finish="stop")
    emit, end = lab.take()
    assert emit == Emit("r", (102,), ())
    assert end.finish.usage == Usage(5, 3, 0)


def test_after_the_last_attempt_the_request_ends_with_an_error(pair):
    pair.submit("r")
    for attempt in range(3):
        pair.say(D, Failed("r", attempt, "broken", True))
        pair.say(D, Credits(min(attempt + 2, 3), 4, 100, 0))
    [end] = [action for action in pair.take() if isinstance(action, Finish)]
    assert end.finish.reason == "error"
    assert end.finish.error == GenerationError("worker_failed", "attempt 3 of 3 failed: d: broken")
    assert pair.dispatcher.num_requests == 0


def test_a_failure_that_is_the_requests_own_fault_is_not_retried(pair):
    to_prefill(pair)
    pair.say(P, Failed("r", 0, "no such token", False))
    cancel, end = pair.take()
    assert cancel == Send(D, Cancel("r", 0))
    assert end.finish.error == GenerationError("invalid_request", "no such token")


def test_a_logits_processor_that_fails_ends_the_request_once_and_frees_both_workers(pair):
    to_prefill(pair)
    pair.say(P, Failed("r", 0, "the logits processor 'x' raised", False, kind="logits_processor_failed"))
    pair.chunk(P, "r", 0, finish="error")  # how the sequence ended there
    cancel, end = pair.take()
    assert cancel == Send(D, Cancel("r", 0))
    assert end.finish.error == GenerationError("logits_processor_failed", "the logits processor 'x' raised")
    assert pair.dispatcher.num_requests == 0


def test_a_failed_hand_off_cancels_both_sides_and_goes_on_locally_if_there_is_no_other_group(pair):
    to_prefill(pair)
    pair.chunk(P, "r", 0, 100)
    pair.take()
    pair.say(D, Failed("r", 0, "checksum", True))
    cancel, again = pair.take()
    assert cancel == Send(P, Cancel("r", 0))
    assert isinstance(again.message, Generate)
    assert again.message.request.output_ids == pack_ids([100])
    assert pair.dispatcher.history.get("r").decisions[-1].reason == "prefill_failed"


def test_a_prefill_group_that_cannot_send_after_its_first_token_ends_the_attempt(pair):
    to_prefill(pair)
    pair.chunk(P, "r", 0, 100)
    pair.take()
    pair.say(P, Failed("r", 0, "no route", True))
    assert pair.kinds() == [(D, Cancel), (D, Generate)]


def test_a_prefill_failure_after_the_hand_off_does_not_concern_the_request(pair):
    to_prefill(pair)
    pair.chunk(P, "r", 0, 100)
    pair.say(D, HandedOff("r", 0, 1, 0.0))
    pair.take()
    pair.say(P, Failed("r", 0, "late", True))
    assert pair.take() == []
    assert pair.phase("r") == "decode"


def test_a_reservation_without_answer_is_given_up(pair):
    pair.submit("r", num_prompt=20)
    pair.take()
    assert pair.dispatcher.next_deadline() == CONFIG.reserve_timeout_s
    pair.tick(CONFIG.reserve_timeout_s)
    kinds = pair.kinds()
    assert kinds == [(D, Cancel), (D, Reserve)]
    pair.say(D, Reserved("r", 0, 0, ticket()))  # the late answer of the first attempt
    assert pair.take() == []
    pair.say(D, Reserved("r", 1, 0, ticket(2)))
    assert pair.kinds() == [(P, Prefill)]


def test_a_refused_reservation_costs_no_attempt_and_is_not_asked_for_again_before_new_credits(pair):
    pair.submit("r", num_prompt=20)
    for attempt in range(CONFIG.max_attempts + 2):
        assert pair.kinds() == [(D, Reserve)]
        pair.say(D, Failed("r", attempt, "no pages", True))
        assert pair.take() == []
        pair.say(D, Credits(attempt + 1, 4, 100, 0))
    assert pair.kinds() == [(D, Reserve)]
    assert pair.dispatcher.snapshot(0.0).totals.retries["refused"] == CONFIG.max_attempts + 2
    pair.dispatcher.check_integrity()


def test_a_worker_that_never_keeps_its_promises_is_not_asked_for_ever(pair):
    pair.submit("r", num_prompt=20)
    for attempt in range(MAX_REFUSALS + CONFIG.max_attempts):
        assert pair.kinds() == [(D, Reserve)], attempt
        pair.say(D, Failed("r", attempt, "no pages", True))
        pair.say(D, Credits(attempt + 1, 4, 100, 0))
    [end] = pair.take()
    assert end.finish.error == GenerationError("worker_failed", "attempt 3 of 3 failed: d: no pages")
    pair.dispatcher.check_integrity()


def test_tokens_that_make_no_sense_end_the_attempt_and_cancel_it_at_the_worker(pair):
    pair.submit("r")
    pair.take()
    pair.chunk(D, "r", 0, 2**40)
    assert pair.kinds() == [(D, Cancel), (D, Generate)]


def test_early_tokens_of_a_failed_attempt_are_forgotten(pair):
    pair.submit("r")
    pair.chunk(D, "r", 1, 999)
    pair.say(D, Failed("r", 0, "broken", True))
    pair.take()
    pair.chunk(D, "r", 0, 100, attempt=1)
    assert pair.take() == [Emit("r", (100,), ())]


def test_tokens_of_a_request_that_is_only_to_be_reserved_end_the_attempt(pair):
    pair.submit("r", num_prompt=20)
    pair.take()
    pair.chunk(D, "r", 0, 100)
    assert pair.dispatcher.snapshot(0.0).totals.retries == {"bad_output": 1}
    assert Send(D, Cancel("r", 0)) in pair.take()
    pair.dispatcher.check_integrity()


def test_a_prefill_group_that_begins_with_a_wrong_index_ends_the_attempt(pair):
    to_prefill(pair)
    pair.chunk(P, "r", 1, 100)
    assert pair.kinds() == [(D, Cancel), (P, Cancel), (D, Generate)]


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_chunk_that_says_error_or_abort_is_a_failed_attempt(pair, reason):
    pair.submit("r")
    pair.take()
    pair.chunk(D, "r", 0, finish=reason)
    assert pair.kinds() == [(D, Generate)]
    assert pair.phase("r") == "prefill"


def test_all_others_hear_of_a_lost_worker(pair):
    other = PeerId("e", 1)
    pair.join(other, "decode")
    pair.take()
    pair.do(pair.dispatcher.worker_lost(D, 0.0))
    assert pair.take() == [Send(P, PeerLost(D)), Send(other, PeerLost(D))]


def test_requests_of_a_lost_decode_worker_go_on_elsewhere_in_their_order(pair):
    for name in "abc":
        pair.submit(name)
        pair.now += 1
    pair.chunk(D, "b", 0, 100)
    pair.take()
    pair.do(pair.dispatcher.worker_lost(D, pair.now))
    pair.take()
    other = PeerId("e", 1)
    pair.join(other, "decode")
    sent = [message.request for _, _, message in pair.sent()]
    assert [request.request_id for request in sent] == ["a", "b", "c"]
    assert sent[1].output_ids == pack_ids([100])


def test_a_decode_worker_lost_while_pages_move_cancels_the_prefill(pair):
    to_prefill(pair)
    pair.chunk(P, "r", 0, 100)
    pair.take()
    pair.do(pair.dispatcher.worker_lost(D, 0.0))
    assert pair.take() == [Send(P, PeerLost(D)), Send(P, Cancel("r", 0))]


def test_a_prefill_group_lost_before_the_first_token_restarts_the_request_locally_when_it_was_the_last(pair):
    to_prefill(pair)
    pair.do(pair.dispatcher.worker_lost(P, 0.0))
    assert pair.kinds() == [(D, PeerLost), (D, Cancel), (D, Generate)]
    assert pair.dispatcher.history.get("r").decisions[-1].reason == "no_prefill_group"


def test_a_prefill_group_lost_after_the_first_token_does_not_concern_the_request(pair):
    to_prefill(pair)
    pair.chunk(P, "r", 0, 100)
    pair.take()
    pair.do(pair.dispatcher.worker_lost(P, 0.0))
    assert pair.take() == [Send(D, PeerLost(P))]
    pair.say(D, HandedOff("r", 0, 1, 0.0))
    pair.chunk(D, "r", 1, 101, finish="stop")
    assert [type(action) for action in pair.take()] == [Emit, Finish]


def test_a_prefill_group_lost_while_its_landing_place_is_reserved_restarts_the_request(pair):
    pair.submit("r", num_prompt=20)
    pair.take()
    pair.do(pair.dispatcher.worker_lost(P, 0.0))
    assert pair.kinds() == [(D, PeerLost), (D, Cancel), (D, Generate)]


def test_messages_of_a_lost_worker_are_ignored(pair):
    pair.submit("r")
    pair.do(pair.dispatcher.worker_lost(D, 0.0))
    pair.take()
    pair.chunk(D, "r", 0, 100)
    pair.say(D, Stats(0, 0, (), ()))
    pair.do(pair.dispatcher.worker_lost(D, 0.0))
    assert pair.take() == []


def test_a_worker_without_a_part_in_a_request_cannot_speak_for_it(pair):
    other = PeerId("e", 1)
    pair.join(other, "decode", credit=False)
    to_prefill(pair)
    for peer in (other, D):
        pair.chunk(other, "r", 0, 666)
        pair.say(other, Failed("r", 0, "me too", True))
        pair.say(other, HandedOff("r", 0, 1, 0.0))
        pair.say(peer, Reserved("r", 0, 0, ticket(9)))
    assert pair.take() == []
    assert pair.phase("r") == "prefill"


def test_a_draining_worker_gets_nothing_new_and_finishes_what_it_has(pair):
    pair.submit("old")
    pair.take()
    pair.do(pair.dispatcher.drain(D, 0.0))
    pair.do(pair.dispatcher.drain(D, 0.0))
    assert pair.take() == [Send(D, Drain())]
    pair.submit("new")
    assert pair.take() == []
    assert not pair.dispatcher.registry.decode_workers
    pair.chunk(D, "old", 0, 1, finish="stop")
    assert [type(action) for action in pair.take()] == [Emit, Finish]
    pair.join(PeerId("e", 1), "decode")
    assert pair.kinds() == [(PeerId("e", 1), Generate)]


def test_a_draining_prefill_group_is_sent_no_prefill_that_was_only_promised(pair):
    pair.submit("r", num_prompt=20)
    pair.take()
    pair.do(pair.dispatcher.drain(P, 0.0))
    assert pair.kinds() == [(P, Drain), (D, Cancel), (D, Generate)]
