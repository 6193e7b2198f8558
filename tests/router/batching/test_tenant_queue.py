"""Tenants share a queue by rows; one tenant alone has it in order of arrival."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from slipstream.router.batching.scheduler import QueuedRequest
from slipstream.router.batching.tenant_queue import MAX_IDLE_TENANTS, TenantQueue
from tests.support.router.batching.made_requests import queued

MAX_ROWS = 4


def drained(queue: TenantQueue, num_requests: int) -> list[str]:
    return [request.request.id for request in queue.take(num_requests)]


def filled(*requests: QueuedRequest) -> TenantQueue:
    queue = TenantQueue()
    for request in requests:
        queue.push(request)
    return queue


@pytest.mark.parametrize("seed", range(30))
def test_tenants_that_keep_waiting_are_served_the_same_number_of_rows(seed: int) -> None:
    draw = random.Random(seed)
    tenants = [f"t{number}" for number in range(draw.randint(2, 5))]
    queue = TenantQueue()
    for tenant in tenants:
        for number in range(200):
            queue.push(queued(f"{tenant}.{number}", draw.randint(1, MAX_ROWS), tenant=tenant))
    served: Counter[str] = Counter()
    for _ in range(60):
        for request in queue.take(draw.randint(1, 4)):
            served[request.request.tenant] += request.batch_size
        rows = [served[tenant] for tenant in tenants]
        assert max(rows) - min(rows) <= MAX_ROWS


@pytest.mark.parametrize("seed", range(30))
def test_requests_are_taken_in_the_order_of_the_walk_and_each_tenants_in_order_of_arrival(seed: int) -> None:
    draw = random.Random(seed)
    queue = TenantQueue()
    waiting: list[QueuedRequest] = []
    taken: list[QueuedRequest] = []
    for number in range(200):
        match draw.choice(("push", "push", "take", "discard")):
            case "push":
                waiting.append(queued(f"{number:03}", draw.randint(1, 3), tenant=draw.choice("abc")))
                queue.push(waiting[-1])
            case "take":
                expected = list(queue)[: draw.randint(1, 4)]
                assert queue.take(len(expected)) == expected
                taken += expected
                waiting = [each for each in waiting if each not in expected]
            case "discard" if waiting:
                request = waiting.pop(draw.randrange(len(waiting)))
                assert queue.discard(request)
                assert not queue.discard(request)
        assert len(queue) == len(waiting)
        assert all(each in queue for each in waiting)
    for tenant in "abc":
        ids = [each.request.id for each in taken if each.request.tenant == tenant]
        assert ids == sorted(ids)


def test_a_tenant_that_was_absent_has_saved_up_no_turns() -> None:
    queue = filled(*(queued(f"a{number}", tenant="a") for number in range(40)))
    assert len(drained(queue, 20)) == 20
    for number in range(10):
        queue.push(queued(f"b{number}", tenant="b"))
    assert sum(id.startswith("b") for id in drained(queue, 10)) <= 6


def test_a_tenant_does_not_pay_for_requests_that_it_cancelled() -> None:
    cancelled = [queued(f"a{number}", tenant="a") for number in range(50)]
    queue = filled(*cancelled, queued("b0", tenant="b"), queued("b1", tenant="b"))
    for request in cancelled:
        queue.discard(request)
    queue.push(queued("a", tenant="a"))
    assert "a" in drained(queue, 2)


def test_newcomers_do_not_keep_out_a_tenant_that_was_served_before_them() -> None:
    queue = filled(*(queued(f"a{number}", 4, tenant="a") for number in range(3)))
    assert drained(queue, 1) == ["a0"]
    for number in range(40):
        queue.push(queued(f"n{number}", tenant=f"newcomer {number}"))
        queue.push(queued(f"m{number}", tenant=f"other {number}"))
        if "a1" in drained(queue, 1):
            break
    assert number < 20


def test_tenants_that_are_gone_are_forgotten() -> None:
    queue = TenantQueue()
    for number in range(3 * MAX_IDLE_TENANTS):
        queue.push(queued("r", tenant=f"t{number}"))
        queue.take(1)
    assert queue.num_known_tenants <= MAX_IDLE_TENANTS + 1
