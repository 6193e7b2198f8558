"""Each way of a request through the dispatcher, event by event."""

from slipstream.router.dispatch.matching import MAX_PASSED
from slipstream.router.dispatch.table.actions import Close, Emit, Finish, Send
from slipstream.router.protocol.generation import (
    Usage,
)
from slipstream.router.protocol.messages import (
    Cancel,
    Credits,
    Failed,
    Generate,
    HandedOff,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    Start,
    pack_ids,
)
from tests.support.router.dispatcher_lab import D, Lab, P, ticket, to_prefill


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
    phases = [event.phase for event in pair.dispatcher.history.get("r").events]
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
    assert pair.dispatcher.history.get("r").decisions[-1].reason == "cached_prefix"
    pair.chunk(D, "r", 0, 100, finish="stop")
    assert [type(action) for action in pair.take()] == [Emit, Finish]


def test_a_prefill_group_that_does_not_compute_the_prompt_after_all_is_not_expected_to_hold_it(pair):
    pair.submit("r", num_prompt=20)
    before = pair.dispatcher.snapshot(0).prefix_index.num_expected
    pair.say(D, Reserved("r", 0, 16, ticket()))
    assert (D, Generate) in pair.kinds()
    after = pair.dispatcher.snapshot(0).prefix_index.num_expected
    assert before == 2 * after > 0


def test_a_decode_worker_that_computes_the_prompt_after_all_is_expected_to_keep_its_state():
    lab = Lab()
    lab.join(D, "decode", keeps_states=True)
    lab.join(P, "prefill", keeps_states=True)

    def num_expected():
        return lab.dispatcher.snapshot(0).prefix_index.num_expected

    lab.submit("r", num_prompt=20)
    assert num_expected() == 1, "the prefill group keeps it"
    lab.now = 0.5
    lab.say(D, Reserved("r", 0, 16, ticket()))
    assert (D, Generate) in lab.kinds()
    assert num_expected() == 1, "now the decode worker does"
    lab.do(lab.dispatcher.cancel("r", lab.now))
    assert num_expected() == 0


def test_a_reservation_that_fails_before_it_is_converted_leaves_no_sequence_behind(pair):
    pair.submit("r", num_prompt=20)
    pair.say(D, Reserved("r", 0, 16, ticket()))
    assert (D, Generate) in pair.kinds()
    pair.say(D, Failed("r", 0, "the pages did not arrive", True, is_unreachable=True))  # said before it heard Generate
    sent = pair.sent()
    assert (D, Cancel) in [(worker, kind) for worker, kind, _ in sent], "it works on a request without a client"
    assert sent[0][2] == Cancel("r", 0), "what comes next takes the slot"
    assert pair.dispatcher.history.get("r").num_attempts == 2


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
