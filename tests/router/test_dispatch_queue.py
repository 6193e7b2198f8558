"""Order of waiting requests: priority, ageing, retries, and deadlines that all lie the same time ahead."""

import random

from slipstream.router.deadlines import DeadlineRing
from slipstream.router.generation import GenerateRequest
from slipstream.router.history import RequestRecord, Timeline
from slipstream.router.messages import SamplingParams, pack_ids
from slipstream.router.output_log import OutputLog
from slipstream.router.queue import WorkQueue
from slipstream.router.request_state import RequestState


def waiting(request_id: str, submitted_s: float, priority: int = 0) -> RequestState:
    request = GenerateRequest(request_id, pack_ids([1]), SamplingParams(1), priority)
    record = RequestRecord(request_id, "", priority, 1, Timeline(submitted_s))
    return RequestState(request, pack_ids([1]), OutputLog(1), record)


def order(queue: WorkQueue) -> list[str]:
    return [queue[position].request_id for position in range(len(queue))]


def test_a_lower_priority_number_goes_first_and_within_a_class_the_earliest():
    queue = WorkQueue(ageing_s=100)
    for name, submitted_s, priority in [("c", 0, 1), ("a", 1, 0), ("d", 2, 1), ("b", 3, 0)]:
        queue.push(waiting(name, submitted_s, priority))
    assert order(queue) == ["a", "b", "c", "d"]
    assert queue.depth_by_priority == {0: 2, 1: 2}


def test_requests_of_the_same_moment_keep_their_order():
    queue = WorkQueue(ageing_s=5)
    for name in "zyx":
        queue.push(waiting(name, 1.0))
    assert order(queue) == ["z", "y", "x"]


def test_waiting_the_ageing_time_lifts_a_request_by_one_class():
    queue = WorkQueue(ageing_s=5)
    queue.push(waiting("patient", 0.0, priority=1))
    queue.push(waiting("before", 4.9, priority=0))
    queue.push(waiting("after", 5.1, priority=0))
    assert order(queue) == ["before", "patient", "after"]


def test_a_request_that_comes_back_stands_before_its_class_but_not_before_urgent_ones():
    queue = WorkQueue(ageing_s=100)
    queue.push(waiting("urgent", 5, priority=-1))
    queue.push(waiting("old", 1))
    queue.push(waiting("new", 3))
    queue.push_front(waiting("again", 2))
    assert order(queue) == ["urgent", "again", "old", "new"]
    queue.push_front(waiting("again2", 4))
    assert order(queue) == ["urgent", "again2", "again", "old", "new"]


def test_removing_takes_exactly_the_named_request():
    queue, rng = WorkQueue(ageing_s=5), random.Random(1)
    states = [waiting(f"r{i}", float(i // 3), rng.randint(-2, 2)) for i in range(60)]
    for state in states:
        queue.push(state)
    left = order(queue)
    for state in rng.sample(states, 60):
        queue.remove(state.request_id)
        left.remove(state.request_id)
        assert order(queue) == left
        assert state.request_id not in queue
    assert len(queue) == 0
    assert queue.depth_by_priority == {}


def test_deadlines_come_due_in_order_and_dropped_ones_never():
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
