"""Each way of a request through the dispatcher, event by event."""

import pytest

from slipstream.kv_transfer.ticket import HandoffTicket, PeerId, TransferAddress
from slipstream.router.actions import Close, Emit, Finish, Send
from slipstream.router.config import DispatchConfig
from slipstream.router.dispatcher import Dispatcher
from slipstream.router.generation import (
    GenerateRequest,
    GenerationError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    Usage,
)
from slipstream.router.matching import MAX_PASSED
from slipstream.router.messages import (
    PROTOCOL_VERSION,
    Cancel,
    Credits,
    Drain,
    Failed,
    Generate,
    HandedOff,
    Hello,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    SamplingParams,
    Start,
    Stats,
    StepOutput,
    TokenChunk,
    pack_ids,
)
from slipstream.router.request_book import MAX_REFUSALS

D, P = PeerId("d", 1), PeerId("p", 1)
CONFIG = DispatchConfig(local_prefill_max_tokens=10, max_queued_requests=3, max_attempts=3)


class Lab:
    """A dispatcher with a clock in hand. `sent` and `seen` empty themselves: what happened since the last look."""

    def __init__(self, config=CONFIG):
        self.dispatcher = Dispatcher(config)
        self.now = 0.0
        self.actions = []

    def do(self, actions):
        self.actions += actions
        self.dispatcher.check_integrity()

    def join(self, peer, role, *, slots=4, pages=100, tokens=1000, credit=True, max_model_len=4096):
        hello = Hello(
            version=PROTOCOL_VERSION,
            token="t",
            worker=peer,
            role=role,
            model="m",
            tp=2 if role == "prefill" else 1,
            pid=1,
            addresses=(TransferAddress("h", 1),),
            page_tokens=16,
            num_pages=pages,
            max_slots=slots,
            max_queued_tokens=tokens,
            max_model_len=max_model_len,
        )
        self.do(self.dispatcher.worker_joined(hello, self.now))
        if credit:
            self.say(peer, Credits(0, slots, pages, tokens))

    def submit(self, request_id, num_prompt=5, max_tokens=10, **more):
        request = GenerateRequest(request_id, [7] * num_prompt, SamplingParams(max_tokens), **more)
        self.do(self.dispatcher.submit(request, self.now))

    def say(self, peer, message):
        self.do(self.dispatcher.worker_message(peer, message, self.now))

    def chunk(self, peer, request_id, index, *tokens, attempt=0, finish=None, cached=0):
        self.say(peer, StepOutput((TokenChunk(request_id, attempt, index, tokens, (), finish, None, cached),)))

    def tick(self, now):
        self.now = now
        self.do(self.dispatcher.tick(now))

    def take(self):
        actions, self.actions = self.actions, []
        return actions

    def sent(self):
        """(worker, message type, the message) of what was sent, other actions dropped."""
        return [(a.worker, type(a.message), a.message) for a in self.take() if isinstance(a, Send)]

    def kinds(self):
        return [(worker, kind) for worker, kind, _ in self.sent()]

    def phase(self, request_id):
        return self.dispatcher.record(request_id).events[-1].phase


@pytest.fixture
def lab():
    return Lab()


@pytest.fixture
def pair():
    """A decode worker and a prefill group, both with credits."""
    lab = Lab()
    lab.join(D, "decode")
    lab.join(P, "prefill")
    lab.take()
    return lab


def ticket(number=1):
    return HandoffTicket(number, D, (TransferAddress("h", 2),), 0, 2, 8, 2, 2, 64)


def to_prefill(lab, request_id="r", attempt=0):
    """A long request, up to the point where the prefill group computes."""
    lab.submit(request_id, num_prompt=20)
    lab.say(D, Reserved(request_id, attempt, 0, ticket()))
    lab.take()


# ---- the two ways


def test_a_short_prompt_is_generated_by_the_decode_worker(pair):
    pair.submit("r", num_prompt=5)
    [(worker, kind, message)] = pair.sent()
    assert (worker, kind, message.seq) == (D, Generate, 1)
    assert message.request.prompt_ids == pack_ids([7] * 5)
    pair.chunk(D, "r", 0, 100, cached=3)
    pair.chunk(D, "r", 1, 101, 102, finish="stop")
    first, second, end = pair.take()
    assert (first, second) == (Emit("r", (100,), ()), Emit("r", (101, 102), ()))
    assert (end.request_id, end.finish.reason, end.finish.usage) == ("r", "stop", Usage(5, 3, 3))
    assert pair.dispatcher.num_requests == 0


def test_a_long_prompt_is_reserved_prefilled_started_and_handed_off(pair):
    pair.submit("r", num_prompt=20)
    [(worker, kind, reserve)] = pair.sent()
    assert (worker, kind, reserve.source, reserve.source_tp) == (D, Reserve, P, 2)
    pair.say(D, Reserved("r", 0, 0, ticket()))
    [(worker, kind, prefill)] = pair.sent()
    assert (worker, kind, prefill.ticket, prefill.request) == (P, Prefill, ticket(), reserve.request)
    pair.chunk(P, "r", 0, 100)
    assert pair.take() == [Emit("r", (100,), ()), Send(D, Start("r", 0, (100,)))]
    assert pair.phase("r") == "transfer"
    pair.say(D, HandedOff("r", 0, 4096, 0.01))
    assert pair.phase("r") == "decode"
    pair.chunk(D, "r", 1, 101, finish="length")
    emit, end = pair.take()
    assert emit == Emit("r", (101,), ())
    assert end.finish.reason == "length"
    phases = [event.phase for event in pair.dispatcher.record("r").events]
    assert phases == ["queued", "placed", "reserved", "prefill", "first_token", "transfer", "decode", "finished"]
    assert pair.dispatcher.snapshot(0).totals.transfer_bytes == 4096


def test_pages_may_arrive_before_the_first_token(pair):
    to_prefill(pair)
    pair.say(D, HandedOff("r", 0, 1, 0.0))
    assert pair.phase("r") == "prefill"
    pair.chunk(P, "r", 0, 100)
    assert pair.phase("r") == "decode"
    assert (D, Start) in pair.kinds()


def test_a_mostly_cached_prompt_is_generated_where_it_was_reserved_and_the_prefill_charge_comes_back(pair):
    pair.submit("r", num_prompt=20)
    by_peer = {worker.peer: worker for worker in pair.dispatcher.snapshot(0).workers}
    assert by_peer[P].free_tokens == 980
    pair.take()
    pair.say(D, Reserved("r", 0, 16, ticket()))
    [(worker, kind, message)] = pair.sent()
    assert (worker, kind, message.seq) == (D, Generate, 2)
    by_peer = {worker.peer: worker for worker in pair.dispatcher.snapshot(0).workers}
    assert (by_peer[P].free_tokens, by_peer[P].num_requests) == (1000, 0)
    assert (by_peer[D].free_slots, by_peer[D].free_pages) == (3, 98)
    assert pair.dispatcher.record("r").decisions[-1].reason == "cached_prefix"
    pair.chunk(D, "r", 0, 100, finish="stop")
    assert [type(action) for action in pair.take()] == [Emit, Finish]


def test_a_reservation_that_fails_before_it_is_converted_leaves_no_sequence_behind(pair):
    pair.submit("r", num_prompt=20)
    pair.say(D, Reserved("r", 0, 16, ticket()))
    assert (D, Generate) in pair.kinds()
    pair.say(D, Failed("r", 0, "the pages did not arrive", True, is_unreachable=True))  # said before it heard Generate
    sent = pair.sent()
    assert (D, Cancel) in [(worker, kind) for worker, kind, _ in sent], "it works on what nobody waits for"
    assert sent[0][2] == Cancel("r", 0), "what comes next takes the slot"
    assert pair.dispatcher.record("r").num_attempts == 2


def test_a_converted_request_that_fails_while_it_decodes_is_not_cancelled_there(pair):
    pair.submit("r", num_prompt=20)
    pair.say(D, Reserved("r", 0, 16, ticket()))
    pair.chunk(D, "r", 0, 100)
    pair.take()
    pair.say(D, Failed("r", 0, "it drains", True))
    assert (D, Cancel) not in pair.kinds()


def test_a_first_token_that_ends_the_request_cancels_what_was_reserved_and_what_is_sent(pair):
    to_prefill(pair)
    pair.chunk(P, "r", 0, 100, finish="stop")
    emit, *cancels, end = pair.take()
    assert emit == Emit("r", (100,), ())
    assert cancels == [Send(D, Cancel("r", 0)), Send(P, Cancel("r", 0))]
    assert end.finish.reason == "stop"


def test_reaching_max_tokens_ends_a_request_whose_worker_did_not_say_so(pair):
    pair.submit("r", max_tokens=2)
    pair.take()
    pair.chunk(D, "r", 0, 100, 101, 102)
    emit, cancel, end = pair.take()
    assert emit == Emit("r", (100, 101), ())
    assert cancel == Send(D, Cancel("r", 0))
    assert (end.finish.reason, end.finish.usage.num_output_tokens) == ("length", 2)


def test_the_last_token_is_told_also_where_it_came_before_the_one_before_it(pair):
    pair.submit("r", max_tokens=2)
    pair.chunk(D, "r", 1, 101)
    pair.take()
    pair.chunk(D, "r", 0, 100)
    first, last, _, end = pair.take()
    assert [first, last] == [Emit("r", (100,), ()), Emit("r", (101,), ())]
    assert (end.finish.reason, end.finish.usage.num_output_tokens) == ("length", 2)


# ---- credits


def test_nothing_is_sent_to_a_worker_before_its_first_credits(lab):
    lab.join(D, "decode", credit=False)
    lab.submit("r")
    assert lab.take() == []
    lab.say(D, Credits(0, 1, 10, 0))
    assert lab.kinds() == [(D, Generate)]


def test_a_request_waits_for_a_slot_and_takes_it_when_it_is_reported(lab):
    lab.join(D, "decode", slots=1)
    lab.submit("a")
    lab.submit("b")
    assert lab.kinds() == [(D, Generate)]
    lab.chunk(D, "a", 0, 1, finish="stop")
    assert lab.kinds() == []  # the worker has not said yet that the slot is free
    lab.say(D, Credits(1, 1, 100, 0))
    [(_, kind, message)] = lab.sent()
    assert (kind, message.seq, message.request.request_id) == (Generate, 2, "b")


def test_busy_prefill_groups_make_long_prompts_wait_while_short_ones_pass(pair):
    pair.say(P, Credits(0, 4, 100, 10))
    pair.submit("long", num_prompt=20)
    pair.submit("short", num_prompt=5)
    [(_, kind, message)] = pair.sent()
    assert (kind, message.request.request_id) == (Generate, "short")
    pair.say(P, Credits(0, 4, 100, 20))
    assert pair.kinds() == [(D, Reserve)]


def test_a_large_request_is_passed_a_bounded_number_of_times(lab):
    lab.join(D, "decode", slots=200, pages=100)
    lab.say(D, Credits(0, 200, 50, 0))  # something else holds half of the pages
    lab.submit("large", num_prompt=900)  # needs 57 pages
    passed = 0
    while passed < 2 * MAX_PASSED:
        lab.submit(f"small{passed}")
        if not lab.kinds():
            break
        passed += 1
        lab.say(D, Credits(passed, 200, 50, 0))
    assert passed == MAX_PASSED
    lab.say(D, Credits(passed, 200, 100, 0))
    assert [message.request.request_id for _, _, message in lab.sent()] == ["large", f"small{passed}"]


def test_long_prompts_waiting_for_prefill_are_passed_without_bound_by_local_ones_only(pair):
    pair.say(P, Credits(0, 4, 100, 30))
    pair.submit("large", num_prompt=40)
    acked = 0
    for number in range(MAX_PASSED + 5):
        pair.submit(f"local{number}", num_prompt=5)
        acked += 1
        pair.say(D, Credits(acked, 4, 100, 0))
        assert pair.kinds() == [(D, Generate)]
    for number in range(MAX_PASSED):
        pair.submit(f"remote{number}", num_prompt=20)
        acked += 1
        pair.say(D, Reserved(f"remote{number}", 0, 0, ticket()))
        pair.say(D, Credits(acked, 4, 100, 0))
        pair.say(P, Credits(number + 1, 4, 100, 30))
        assert pair.kinds() == [(D, Reserve), (P, Prefill)]
    pair.submit("remote", num_prompt=20)
    assert pair.kinds() == []
    pair.say(P, Credits(MAX_PASSED, 4, 100, 60))
    assert [message.request.request_id for _, _, message in pair.sent()] == ["large", "remote"]


def test_a_worker_that_acknowledges_what_was_never_sent_is_parted_with(pair):
    pair.submit("r")
    pair.take()
    pair.say(D, Credits(2, 4, 100, 0))
    close, *others = pair.take()
    assert isinstance(close, Close)
    assert close.worker == D
    assert others == [Send(P, PeerLost(D))]
    assert pair.phase("r") == "queued"


# ---- failures


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


def test_a_failed_hand_off_cancels_both_sides_and_goes_on_locally_if_there_is_no_other_group(pair):
    to_prefill(pair)
    pair.chunk(P, "r", 0, 100)
    pair.take()
    pair.say(D, Failed("r", 0, "checksum", True))
    cancel, again = pair.take()
    assert cancel == Send(P, Cancel("r", 0))
    assert isinstance(again.message, Generate)
    assert again.message.request.output_ids == pack_ids([100])
    assert pair.dispatcher.record("r").decisions[-1].reason == "prefill_failed"


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


# ---- lost workers


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
    assert pair.dispatcher.record("r").decisions[-1].reason == "no_prefill_group"


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


# ---- draining


def test_a_draining_worker_gets_nothing_new_and_finishes_what_it_has(pair):
    pair.submit("old")
    pair.take()
    pair.do(pair.dispatcher.drain(D, 0.0))
    pair.do(pair.dispatcher.drain(D, 0.0))
    assert pair.take() == [Send(D, Drain())]
    pair.submit("new")
    assert pair.take() == []
    assert not pair.dispatcher.has_decode_worker
    pair.chunk(D, "old", 0, 1, finish="stop")
    assert [type(action) for action in pair.take()] == [Emit, Finish]
    pair.join(PeerId("e", 1), "decode")
    assert pair.kinds() == [(PeerId("e", 1), Generate)]


def test_a_draining_prefill_group_is_sent_no_prefill_that_was_only_promised(pair):
    pair.submit("r", num_prompt=20)
    pair.take()
    pair.do(pair.dispatcher.drain(P, 0.0))
    assert pair.kinds() == [(P, Drain), (D, Cancel), (D, Generate)]


# ---- cancel


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
    ("progress", "told"),
    [("prefill", [D, P]), ("transfer", [D, P]), ("landed", [D, P]), ("decode", [D])],
)
def test_cancel_in_every_later_state(pair, progress, told):
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
    assert cancels == [Send(worker, Cancel("r", 0)) for worker in told]
    assert end.finish.reason == "abort"


def test_a_cancelled_id_can_be_used_again(pair):
    pair.submit("r")
    pair.do(pair.dispatcher.cancel("r", 0.0))
    pair.submit("r")
    assert pair.dispatcher.num_requests == 1


# ---- admission and time


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
        (GenerateRequest("r", [1], SamplingParams(0)), "max_tokens must be at least 1, got 0"),
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


# ---- what can be asked


def test_the_story_of_a_request_can_be_told_after_its_end(pair):
    to_prefill(pair)
    pair.now = 0.25
    pair.chunk(P, "r", 0, 100, finish="stop")
    record = pair.dispatcher.record("r")
    assert record.why.startswith("remote on p -> d: long_prompt")
    assert record.timeline.first_token == record.timeline.finished == 0.25
    assert record.lines()[-1].split() == ["250.00", "ms", "attempt", "0", "finished:", "stop"]


def test_only_so_many_stories_are_kept():
    lab = Lab()
    lab.dispatcher = Dispatcher(CONFIG, history_capacity=2)
    for name in "abc":
        lab.submit(name)
    assert lab.dispatcher.record("a") is None
    assert lab.dispatcher.record("c") is not None


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
