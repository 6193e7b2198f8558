"""Order of waiting requests: classes with ageing, tenants, deadlines, requests that come back, choices."""

import random
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.dispatch.queue.fair_queue import MAX_AWAY, expected_tokens
from slipstream.router.dispatch.queue.work_queue import MAX_PRIORITY, WorkQueue
from slipstream.router.protocol.generation import Deadline, GenerateRequest, Levels
from slipstream.router.protocol.messages import SamplingParams, pack_ids
from slipstream.router.requests.deadlines import DeadlineRing, Deadlines
from slipstream.router.requests.history import RequestRecord, Timeline
from slipstream.router.requests.output_length import OutputForecast
from slipstream.router.requests.output_log import OutputLog
from slipstream.router.requests.ranked_heap import RankedHeap
from slipstream.router.requests.request_state import RequestState

AGEING_S = 5.0
DEADLINE = Deadline("request_timeout_s", 600.0)


def waiting(
    request_id, queued_s=0.0, priority=0, tenant="", *, weight=1.0, tokens=10, ttft_s=2.0, output=1, is_background=False
):
    prompt_ids = pack_ids([1] * tokens)
    sampling = SamplingParams(1000)
    request = GenerateRequest(
        request_id, prompt_ids, sampling, priority, tenant=tenant, weight=weight, is_background=is_background
    )
    record = RequestRecord(request_id, tenant, priority, tokens, Timeline(queued_s))
    forecast = OutputForecast(output, output, output, float(output))
    return RequestState(request, prompt_ids, OutputLog(1000), record, Levels(ttft_s, 0.05), DEADLINE, forecast=forecast)


def queue_of(*states, ageing_s=AGEING_S):
    queue = WorkQueue(ageing_s)
    for state in states:
        queue.push(state)
    return queue


def order(queue, now=0.0):
    return [state.request_id for state in queue.candidates(now)]


def serve(queue, now=0.0):
    """The next one has its turn."""
    state = next(queue.candidates(now))
    queue.take(state.request_id, now)
    return state


def test_a_lower_priority_number_goes_first_and_within_a_class_the_earliest():
    queue = queue_of(waiting("c", 0, 1), waiting("a", 1, 0), waiting("d", 2, 1), waiting("b", 3, 0))
    assert order(queue, 3) == ["a", "b", "c", "d"]
    assert [queue[position].request_id for position in range(4)] == ["a", "b", "c", "d"]
    assert queue.depth_by_priority == {0: 2, 1: 2}
    assert queue.oldest_by_priority() == {0: 1, 1: 0}


def test_requests_of_the_same_moment_keep_their_order():
    assert order(queue_of(*[waiting(name, 1.0) for name in "zyx"]), 1) == ["z", "y", "x"]


def test_a_class_that_has_waited_the_ageing_time_gets_every_second_turn():
    queue = queue_of(waiting("old0", 0.0, 1), waiting("old1", 0.1, 1), *[waiting(f"u{i}", 4.0) for i in range(4)])
    assert order(queue, 4.9) == ["u0", "u1", "u2", "u3", "old0", "old1"]
    assert [serve(queue, 5.1).request_id for _ in range(6)] == ["u0", "old0", "u1", "old1", "u2", "u3"]


def test_background_work_never_ages():
    queue = queue_of(
        waiting("line", 0.0, is_background=True), *[waiting(f"u{i}", 900.0, MAX_PRIORITY) for i in range(3)]
    )
    assert [serve(queue, 1000.0).request_id for _ in range(4)] == ["u0", "u1", "u2", "line"]


def test_background_work_does_not_keep_another_class_from_ageing():
    queue = queue_of(
        waiting("line", 0.0, is_background=True), waiting("old", 1.0, 1), waiting("u0", 7.0), waiting("u1", 7.0)
    )
    assert [serve(queue, 8.0).request_id for _ in range(4)] == ["u0", "old", "u1", "line"]


def test_a_client_gets_no_background_class_by_any_priority():
    for priority in (2_000_000, 2**31 - 1):
        queue = queue_of(waiting("low", 0.0, priority), *[waiting(f"u{i}", 900.0) for i in range(3)])
        assert [serve(queue, 1000.0).request_id for _ in range(3)] == ["u0", "low", "u1"]


def test_two_classes_below_means_twice_the_ageing_time():
    queue = queue_of(waiting("old", 0.0, 2), waiting("u0", 4.0), waiting("u1", 4.0))
    assert order(queue, 9.9) == ["u0", "u1", "old"]
    assert order(queue, 10.0) == ["u0", "old", "u1"]


def test_priorities_far_out_count_as_the_last_class():
    queue = queue_of(
        waiting("lowest", 0.0, 2**31 - 1), waiting("low", 1.0, MAX_PRIORITY), waiting("top", 2.0, -(10**6))
    )
    assert order(queue, 2) == ["top", "lowest", "low"]
    assert queue.depth_by_priority == {-MAX_PRIORITY: 1, MAX_PRIORITY: 2}


def test_an_old_crowd_of_one_tenant_delays_an_urgent_request_of_another_by_one_turn():
    queue = queue_of(*[waiting(f"a{i}", 0.0, 1, "crowd") for i in range(100)])
    for _ in range(3):
        serve(queue, 59.0)
    queue.push(waiting("urgent", 60.0, 0, "other"))
    assert "urgent" in order(queue, 60.0)[:2]


def test_within_a_class_and_tenant_the_earliest_deadline_goes_first():
    queue = queue_of(
        waiting("none", 0.0),
        waiting("late", 0.1, ttft_s=30),
        waiting("soon", 1.0, ttft_s=0.2),
        waiting("mid", 0, ttft_s=1.9),
    )
    assert order(queue, 1) == ["soon", "mid", "none", "late"]


def test_a_far_deadline_counts_as_a_minute():
    queue = queue_of(waiting("day", 0.0, ttft_s=86_400), waiting("later", 60.5))
    assert order(queue, 61) == ["day", "later"]


def test_a_flood_does_not_delay_the_first_request_of_another_tenant():
    queue = queue_of(*[waiting(f"a{i}", 0.0, 0, "flood") for i in range(500)])
    for _ in range(50):
        serve(queue)
    queue.push(waiting("b", 1.0, 0, "other"))
    assert "b" in order(queue, 1.0)[:2]


def test_a_tenant_saves_up_no_turns_while_it_is_away():
    queue = queue_of(*[waiting(f"a{i}", 0.0, 0, "a") for i in range(100)])
    for _ in range(50):
        serve(queue)
    for i in range(20):
        queue.push(waiting(f"b{i}", 1.0, 0, "b"))
    taken = Counter(serve(queue, 1.0).request.tenant for _ in range(20))
    assert taken == {"a": 10, "b": 10}


def test_large_requests_cost_a_tenant_turns():
    states = [waiting(f"big{i}", 0, 0, "big", tokens=90) for i in range(50)]
    queue = queue_of(*states, *[waiting(f"s{i}", 0, 0, "small", tokens=9) for i in range(50)])
    taken = Counter(serve(queue).request.tenant for _ in range(44))
    assert taken["small"] == pytest.approx(9.1 * taken["big"], rel=0.2)


def test_output_that_was_not_foreseen_is_charged_at_the_end():
    queue = queue_of(
        *[waiting(f"a{i}", 0, 0, "a", output=200) for i in range(9)],
        *[waiting(f"b{i}", 0, 0, "b", output=200) for i in range(9)],
    )
    first, second = serve(queue), serve(queue)
    assert {first.request.tenant, second.request.tenant} == {"a", "b"}
    assert first.charged_tokens == expected_tokens(first) == 210
    queue.settle(first, 610)
    queue.settle(second, 10)
    others = [serve(queue).request.tenant for _ in range(3)]
    assert others == [second.request.tenant] * 3
    queue.settle(first, 610)  # again: nothing is missing
    assert serve(queue).request.tenant == first.request.tenant


def test_debts_are_forgotten_when_nobody_waits_and_absent_tenants_are_not_kept_for_ever():
    queue = queue_of(waiting("a0", tenant="a", tokens=1000))
    queue.settle(serve(queue), 1)
    queue.push(waiting("a1", tenant="a"))
    queue.push(waiting("b0", tenant="b"))
    assert order(queue) == ["a1", "b0"]
    for i in range(3 * MAX_AWAY):
        queue.push(waiting(f"t{i}", tenant=f"t{i}"))
        queue.take(f"t{i}", 0.0)
        serve(queue)
        queue.push(waiting(f"x{i}", tenant="x"))
    assert len(queue._fair_queues[0]._away) <= MAX_AWAY + 3


def test_tenants_that_come_once_are_not_kept_for_ever_while_others_wait():
    queue = queue_of(waiting("old", tenant="old", tokens=10**6), waiting("old2", tenant="old"))
    serve(queue)  # what is left of it waits behind many newcomers, so the queue never empties
    for i in range(3 * MAX_AWAY):
        queue.push(waiting(f"t{i}", tenant=f"t{i}"))
        assert serve(queue).request_id == f"t{i}"
    assert len(queue) == 1
    assert len(queue._fair_queues[0]._away) <= MAX_AWAY + 1


@pytest.mark.parametrize("num_at_once", [1, 2, 5])
def test_endless_new_names_do_not_keep_out_who_had_his_turn_before_them(num_at_once):
    """So many newcomers always wait; each token is divided among them and the one who was there first."""
    queue = queue_of(waiting("old", tenant="old", tokens=1000), waiting("old2", tenant="old", tokens=1000))
    assert serve(queue).request_id == "old"
    served = ""
    num_turns = 0
    for i in range(num_at_once):
        queue.push(waiting(f"t{i}", tenant=f"t{i}"))
    while served != "old2":
        served = serve(queue).request_id
        num_turns += 1
        queue.push(waiting(f"n{num_turns}", tenant=f"n{num_turns}"))
        assert num_turns <= (1001 / 11 + 2) * (num_at_once + 1)
    assert num_turns >= 1001 / 11 - 1  # and does not get ahead of them either


def test_a_newcomer_starts_no_later_than_what_its_own_request_costs_whatever_was_charged_wrongly():
    """The charges of one who waited alone were much too high, so the virtual time is far ahead of all tags."""
    queue = queue_of(*[waiting(f"a{i}", tenant="a", output=10_000) for i in range(9)])
    served = [serve(queue) for _ in range(5)]
    for state in served:
        queue.settle(state, 11)
    for i in range(50):
        queue.push(waiting(f"x{i}", tenant="x"))
    queue.push(waiting("new", tenant="new"))
    assert "new" in [serve(queue).request_id for _ in range(8)]  # after four of a's and at most one of x's


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=5),
    sizes=st.lists(st.integers(1, 60), min_size=40, max_size=200),
    data=st.data(),
)
def test_tenants_that_keep_waiting_share_by_weight_up_to_one_request_of_each(weights, sizes, data):
    """The bound of start-time fair queueing, after every turn."""
    queue, given_tokens, serial = WorkQueue(AGEING_S), [0.0] * len(weights), 0

    def push(tenant):
        nonlocal serial
        serial += 1
        tokens = data.draw(st.sampled_from(sizes)) if serial < 40 else sizes[serial % len(sizes)]
        queue.push(waiting(f"r{serial}", 0.0, 0, str(tenant), weight=weights[tenant], tokens=tokens))

    for tenant in range(len(weights)):
        push(tenant)
        push(tenant)
    largest = max(sizes) + 1
    for _ in range(len(sizes)):
        state = serve(queue)
        tenant = int(state.request.tenant)
        given_tokens[tenant] += expected_tokens(state)
        push(tenant)
        for a in range(len(weights)):
            for b in range(len(weights)):
                gap = given_tokens[a] / weights[a] - given_tokens[b] / weights[b]
                assert gap <= largest / weights[a] + largest / weights[b] + 1e-6


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push", "push", "push", "serve", "remove", "return"]),
            st.integers(-10, 10),
            st.sampled_from("abc"),
            st.sampled_from([2.0, 0.1, 5.0, 500.0]),
            st.floats(0, 3),
        ),
        max_size=60,
    )
)
def test_what_waits_is_handed_out_once_each_whatever_happened(steps):
    queue, now, inside, taken = WorkQueue(AGEING_S), 0.0, {}, []
    for number, (step, priority, tenant, ttft_s, pause_s) in enumerate(steps):
        now += pause_s
        if step == "push":
            state = waiting(f"r{number}", now, priority, tenant, tokens=1 + number % 7, ttft_s=ttft_s)
            queue.push(state)
            inside[state.request_id] = state
        elif step == "return" and taken:
            state = taken.pop(0)
            queue.push_front(state)
            inside[state.request_id] = state
        elif inside and step == "serve":
            state = serve(queue, now)
            del inside[state.request_id]
            taken.append(state)
        elif inside and step == "remove":
            request_id = random.Random(number).choice(sorted(inside))
            queue.remove(request_id)
            del inside[request_id]
        assert len(queue) == len(inside)
        assert sorted(order(queue, now)) == sorted(inside)
        assert sum(queue.depth_by_priority.values()) == len(inside)
        assert all(request_id in queue for request_id in inside)
    while inside:  # work conserving: as long as somebody waits, somebody is next
        del inside[serve(queue, now).request_id]
    assert order(queue, now) == []


@settings(max_examples=60, deadline=None)
@given(
    priority=st.integers(-2, 4),
    others=st.lists(st.tuples(st.integers(-4, 4), st.sampled_from("ab")), min_size=1, max_size=4),
    rate=st.integers(1, 4),
)
def test_a_stream_of_urgent_requests_starves_nobody(priority, others, rate):
    """However urgent what keeps coming, one request in `rate` turns a second leaves no later than it has to."""
    queue, victim = WorkQueue(AGEING_S), waiting("victim", 0.0, priority, "victim")
    queue.push(victim)
    backlog, serial = deque(), 0
    top = min([priority, *(other for other, _ in others)])
    # Aged after this time; then every second turn is for aged classes, where it is behind what came before it aged.
    longest_s = (priority - top) * AGEING_S
    for turn in range(10_000):
        now = turn / rate
        for other, tenant in others:
            if len(queue) < 60:
                serial += 1
                queue.push(waiting(f"o{serial}", now, other, tenant))
        state = serve(queue, now)
        if state is victim:
            break
        backlog.append(state)
    allowed = rate * (max(longest_s, 0.0) + 8 * AGEING_S) + 4 * 60 + 2 * len(others)
    assert state is victim
    assert turn <= allowed, (turn, allowed)


def test_the_order_follows_what_is_taken_and_removed_while_it_is_walked():
    queue = queue_of(*[waiting(f"a{i}", 0, 0, "a") for i in range(4)], *[waiting(f"b{i}", 0, 0, "b") for i in range(4)])
    seen = []
    for number, state in enumerate(queue.candidates(0.0)):
        seen.append(state.request_id)
        if number % 3 == 0:
            queue.take(state.request_id, 0.0)
        elif number % 3 == 1:
            queue.remove(state.request_id)
    assert sorted(seen) == sorted(f"{tenant}{i}" for tenant in "ab" for i in range(4))
    assert sorted(order(queue)) == sorted(seen[2::3])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 1), st.sampled_from("ab"), st.booleans()), max_size=40))
def test_who_comes_while_nobody_waits_is_treated_as_in_a_line(steps):
    queues = [WorkQueue(AGEING_S) for _ in range(2)]
    ended = [[], []]
    for number, (kind, priority, tenant, looks) in enumerate(steps):
        now, name = float(number), f"r{number}"
        for queue, gone in zip(queues, ended, strict=True):
            if queue is queues[0] or looks:
                queue.oldest_by_priority()  # each queue that is asked makes a line
            if kind <= 1:
                queue.push(waiting(name, now, priority, tenant, output=number), delay_s=0.1 * kind)
            elif kind == 2:
                queue.push_front(waiting(name, now, priority, tenant))
            elif kind == 3 and gone:
                queue.settle(gone.pop(), 7)
            elif kind == 4 and len(queue):
                queue.remove(queue[0].request_id)
            elif len(queue):
                gone.append(serve(queue, now))
        first, second = ([*order(queue, now), queue.version] for queue in queues)
        assert first == second
        first, second = ([(state.request_id, state.charged_tokens) for state in gone] for gone in ended)
        assert first == second
    assert queues[0].depth_by_priority == queues[1].depth_by_priority


def test_a_request_that_comes_back_stands_before_its_class_but_not_before_urgent_ones():
    queue = queue_of(waiting("urgent", 5, -1), waiting("old", 1), waiting("new", 3))
    queue.push_front(waiting("again", 4))
    assert order(queue, 5) == ["urgent", "again", "old", "new"]
    queue.push_front(waiting("again2", 2))
    assert order(queue, 5) == ["urgent", "again2", "again", "old", "new"]


def test_a_request_that_comes_back_is_not_charged_again():
    queue = queue_of(*[waiting(f"a{i}", 0, 0, "a") for i in range(3)], *[waiting(f"b{i}", 0, 0, "b") for i in range(3)])
    first = serve(queue)
    for _ in range(5):
        queue.push_front(first)
        assert serve(queue) is first
    rest = [serve(queue).request.tenant for _ in range(5)]
    assert rest == ["b", "a", "b", "a", "b"] or rest == ["b", "b", "a", "a", "b"]


def test_later_choices_of_one_question_stand_behind_what_comes_meanwhile():
    queue = WorkQueue(AGEING_S)
    for choice in range(128):
        queue.push(waiting(f"c{choice}", 0.0), delay_s=choice * 0.1)
    queue.push(waiting("other", 0.25))
    assert order(queue, 0.25)[:4] == ["c0", "c1", "c2", "other"]


def test_who_is_before_a_new_request():
    queue = queue_of(
        *[waiting(f"a{i}", 0, 0, "a") for i in range(50)], *[waiting(f"l{i}", 0, 3, "l") for i in range(50)]
    )
    assert queue.num_before("a", 0) == 50
    assert queue.num_before("b", 0) == 1  # one turn for each that waits
    assert queue.num_before("b", -1) == 0
    assert queue.num_before("b", 3) == 2
    assert queue.num_waiting_of("a") == 50
    assert WorkQueue(AGEING_S).num_before("a", 0) == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=80))
def test_a_ranked_heap_is_a_stable_sort_of_what_is_left(pushes):
    heap, model = RankedHeap(), []
    for number, (rank, removes) in enumerate(pushes):
        heap.push(rank, number)
        model.append((rank, number))
        if removes:
            gone = model.pop(rank % len(model))
            heap.discard(gone[1])
        assert list(heap) == [number for _, number in sorted(model)]
        assert len(heap) == len(model)
        if model:
            assert heap.first() == min(model)[1]
    heap.discard("unknown")


def test_a_ranked_heap_keeps_no_more_dead_entries_than_living_ones():
    heap = RankedHeap()
    for number in range(10_000):
        heap.push(-number, number)
        heap.discard(number - 10)
    assert len(heap._heap) < 100


def test_deadlines_of_one_length_come_due_in_order_and_dropped_ones_never():
    ring = DeadlineRing(10)
    for name, now in [("a", 0.0), ("b", 1.0), ("c", 2.0)]:
        ring.set(name, now)
    ring.drop("b")
    assert ring.first == 10.0
    assert ring.pop_due(9.99) == []
    assert ring.pop_due(12.0) == ["a", "c"]
    assert ring.first is None
    assert len(ring) == 0


def test_setting_a_deadline_again_moves_it():
    ring = DeadlineRing(10)
    ring.set("a", 0.0)
    ring.set("b", 1.0)
    ring.set("a", 5.0)
    assert ring.first == 11.0
    assert ring.pop_due(15.0) == ["b", "a"]


def test_deadlines_of_any_length_come_due_by_time():
    deadlines = Deadlines()
    for name, due in [("a", 5.0), ("b", 1.0), ("c", 3.0), ("d", 9.0)]:
        deadlines.set(name, due)
    deadlines.drop("c")
    deadlines.drop("missing")
    assert deadlines.first == 1.0
    deadlines.set("b", 6.0)
    assert deadlines.first == 5.0
    assert deadlines.pop_due(6.0) == ["a", "b"]
    assert "d" in deadlines
    assert len(deadlines) == 1
    assert deadlines.pop_due(9.0) == ["d"]
    assert deadlines.first is None


def test_the_queue_by_tenant_counts_all_classes_and_requests_that_came_back():
    queue = queue_of(waiting("a", 0, 0, "x"), waiting("b", 0, 1, "x"), waiting("c", 0, 0, "y"))
    assert queue.num_by_tenant() == {"x": 2, "y": 1}
    returned = serve(queue)
    queue.push_front(returned)
    assert queue.num_by_tenant() == {"x": 2, "y": 1}
    serve(queue)
    assert queue.num_by_tenant().total() == 2
