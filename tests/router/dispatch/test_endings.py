"""How requests end other than with their answer: cancelled, refused, too late; and what can be asked of them."""

import pytest

from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Send
from slipstream.router.protocol.generation import (
    GenerateRequest,
    GenerationError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
)
from slipstream.router.protocol.messages import (
    Cancel,
    Credits,
    HandedOff,
    Reserved,
    SamplingParams,
    Stats,
)
from slipstream.router.requests.history import History
from tests.support.router.dispatcher_lab import CONFIG, D, Lab, P, ticket, to_prefill


def test_a_queued_request_is_cancelled_without_a_word_to_anybody(lab):
    lab.submit("r")
    lab.do(lab.dispatcher.cancel("r", 0.0))
    [end] = lab.take()
    assert end.finish.reason == "abort"
    assert lab.dispatcher.next_deadline() is None


def test_cancel_reaches_each_involved_worker_once_and_late_answers_are_ignored(pair):
    pair.submit("r", num_prompt=20)
    pair.take()
    pair.do(pair.dispatcher.cancel("r", 0.0))
    pair.do(pair.dispatcher.cancel("r", 0.0))
    cancel, end = pair.take()
    assert cancel == Send(D, Cancel("r", 0))
    assert end.finish.reason == "abort"
    # Cancel follows Reserve on the same connection, so the worker gives the place back; its answer crossed ours.
    pair.say(D, Reserved("r", 0, 0, ticket()))
    assert pair.take() == []
    by_peer = {worker.peer: worker for worker in pair.dispatcher.snapshot(0).workers}
    assert by_peer[P].free_tokens == 1000


@pytest.mark.parametrize(
    ("progress", "recipients"),
    [("prefill", [D, P]), ("transfer", [D, P]), ("landed", [D, P]), ("decode", [D])],
)
def test_cancel_in_every_later_state(pair, progress, recipients):
    to_prefill(pair)
    if progress == "landed":
        pair.say(D, HandedOff("r", 0, 1, 0.0))
    if progress in ("transfer", "decode"):
        pair.chunk(P, "r", 0, 100)
    if progress == "decode":
        pair.say(D, HandedOff("r", 0, 1, 0.0))
    pair.take()
    pair.do(pair.dispatcher.cancel("r", 0.0))
    *cancels, end = pair.take()
    assert cancels == [Send(worker, Cancel("r", 0)) for worker in recipients]
    assert end.finish.reason == "abort"


def test_a_cancelled_id_can_be_used_again(pair):
    pair.submit("r")
    pair.do(pair.dispatcher.cancel("r", 0.0))
    pair.submit("r")
    assert pair.dispatcher.num_requests == 1


def test_a_full_queue_rejects_and_says_when_to_come_back(lab):
    for number in range(3):
        lab.submit(f"r{number}")
    with pytest.raises(QueueFullError) as raised:
        lab.submit("r3")
    assert raised.value.error.kind == "queue_full"
    assert raised.value.error.retry_after_s >= 1
    assert lab.dispatcher.num_requests == 3
    assert lab.dispatcher.snapshot(0).totals.rejections == {"queue_full": 1}


def test_a_prompt_that_no_connected_worker_could_hold_is_rejected(lab):
    lab.join(D, "decode", pages=2)
    with pytest.raises(PromptTooLongError, match="at most 32 tokens"):
        lab.submit("r", num_prompt=32)
    lab.submit("ok", num_prompt=31)


def test_a_prompt_too_long_for_the_worker_that_comes_at_last_ends_with_that_error(lab):
    lab.submit("r", num_prompt=100)
    assert lab.take() == []
    lab.join(D, "decode", pages=2)
    [end] = lab.take()
    assert end.finish.error.kind == "prompt_too_long"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (GenerateRequest("r", [], SamplingParams(1)), "empty"),
        (GenerateRequest("r", b"\x01\x02\x03", SamplingParams(1)), "whole int32"),
        (GenerateRequest("r", [2**31], SamplingParams(1)), "token ids"),
        (GenerateRequest("r", ["a"], SamplingParams(1)), "token ids"),  # type: ignore[list-item]
        (GenerateRequest("r", [1], SamplingParams(-1)), "max_tokens must be at least 0, got -1"),
        (GenerateRequest("taken", [1], SamplingParams(1)), "'taken' is in use"),
    ],
)
def test_a_request_that_makes_no_sense_is_rejected(lab, request_, said):
    lab.submit("taken")
    with pytest.raises(InvalidRequestError, match=said):
        lab.dispatcher.submit(request_, 0.0)
    assert lab.dispatcher.num_requests == 1


def test_waiting_too_long_ends_with_a_hint_to_come_back(lab):
    lab.submit("r")
    assert lab.dispatcher.next_deadline() == CONFIG.queue_timeout_s
    lab.tick(CONFIG.queue_timeout_s)
    [end] = lab.take()
    assert end.finish.error.kind == "queue_timeout"
    assert end.finish.error.retry_after_s > 0


def test_taking_too_long_cancels_the_work(pair):
    pair.submit("r")
    pair.take()
    assert pair.dispatcher.next_deadline() == CONFIG.request_timeout_s
    pair.tick(CONFIG.request_timeout_s)
    cancel, end = pair.take()
    assert cancel == Send(D, Cancel("r", 0))
    assert end.finish.error.kind == "request_timeout"
    assert pair.dispatcher.next_deadline() is None


def test_a_retried_request_waits_for_its_full_queue_timeout_again(lab):
    lab.join(D, "decode")
    lab.submit("r")
    lab.now = 100.0
    lab.do(lab.dispatcher.worker_lost(D, lab.now))
    assert lab.dispatcher.next_deadline() == 100.0 + CONFIG.queue_timeout_s


def test_going_down_ends_everything_with_one_word(pair):
    pair.submit("r")
    pair.take()
    error = GenerationError("shutting_down", "bye")
    pair.do(pair.dispatcher.finish_all(error, 0.0))
    cancel, end = pair.take()
    assert cancel == Send(D, Cancel("r", 0))
    assert end.finish.error == error


def test_the_story_of_a_request_can_be_told_after_its_end(pair):
    to_prefill(pair)
    pair.now = 0.25
    pair.chunk(P, "r", 0, 100, finish="stop")
    record = pair.dispatcher.history.get("r")
    assert record.why.startswith("remote on p -> d: long_prompt")
    assert record.timeline.first_token == record.timeline.finished == 0.25
    assert record.lines()[-1].split() == ["250.00", "ms", "attempt", "0", "finished:", "stop"]


def test_only_so_many_stories_are_kept():
    lab = Lab()
    lab.dispatcher = Dispatcher(CONFIG, History(2))
    for name in "abc":
        lab.submit(name)
    assert lab.dispatcher.history.get("a") is None
    assert lab.dispatcher.history.get("c") is not None


def test_a_snapshot_shows_queue_workers_and_totals_and_does_not_move_on(pair):
    stats = Stats(1, 2, (("free", 3),), (("steps", 4.0),))
    pair.say(D, stats)
    pair.submit("a")
    pair.say(D, Credits(1, 0, 0, 0))
    pair.submit("b", priority=2)
    snapshot = pair.dispatcher.snapshot(5.0)
    pair.submit("c")
    assert (snapshot.queue_depth, snapshot.num_waiting, snapshot.num_running) == ({2: 1}, 1, 1)
    assert snapshot.num_requests_by_phase == {"prefill": 1, "queued": 1}
    assert snapshot.totals.placements == {"short_prompt": 1}
    assert snapshot.totals.num_prompt_tokens == 10
    decode, prefill = snapshot.workers
    assert (decode.peer, decode.role, decode.stats, decode.num_requests) == (D, "decode", stats, 1)
    assert (prefill.tp, prefill.free_tokens, prefill.connected_s) == (2, 1000, 5.0)
