"""The division of a host's memory over time, with workers that answer late, come, go and come back."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.page_budget.page_budget import CALM_S, GONE_S, SETTLE_S, TURN_S, PageBudget
from slipstream.router.page_budget.page_ledger import BudgetedWorker
from slipstream.router.protocol.messages import PageLimit, PagesHeld

HOST = "h"


@dataclass
class Worker:
    """A worker whose messages take their time in both directions. Its own pages are `held` at any moment."""

    name: str
    num_pages: int = 1000
    page_bytes: int = 1
    longest: int = 10
    weight: float = 1.0
    used: int = 0
    cached: int = 0
    wanted: int = 0
    limit: int = 0
    epoch: int = 1
    hosts: tuple[str, ...] = (HOST,)
    first_limit: int = 0
    ack_seq: int = 0
    inbox: deque[PageLimit] = field(default_factory=deque)
    outbox: deque[PagesHeld] = field(default_factory=deque)
    report: PagesHeld | None = None

    @property
    def held(self) -> int:
        return max(self.limit, self.used)

    def connect(self) -> None:
        self.epoch += 1
        self.first_limit, self.ack_seq, self.report = self.held, 0, None
        self.inbox.clear()
        self.outbox.clear()

    def take_message(self) -> None:
        if self.inbox:
            message = self.inbox.popleft()
            self.ack_seq, self.limit = message.seq, message.num_pages
            self.cached = max(min(self.cached, self.limit - self.used), 0)
            self.say()

    def say(self) -> None:
        if self.ack_seq:
            self.outbox.append(PagesHeld(self.ack_seq, self.held, self.used, self.cached, self.wanted))

    def be_heard(self) -> None:
        if self.outbox:
            self.report = self.outbox.popleft()

    def settle(self) -> None:
        while self.inbox or self.outbox:
            self.take_message()
            self.be_heard()

    def change(self, used: int, wanted: int) -> None:
        """It uses no more than it may, unless it did before."""
        self.used = min(used, max(self.limit, self.used))
        self.cached = max(min(self.cached, self.limit - self.used), 0)
        self.wanted = wanted
        self.say()

    @property
    def seen(self) -> BudgetedWorker:
        return BudgetedWorker(
            PeerId(self.name, self.epoch),
            self.hosts,
            self.page_bytes,
            self.num_pages,
            self.longest,
            self.first_limit,
            self.report,
            0,
            self.weight,
        )


class Host:
    def __init__(self, budget: float, *workers: Worker) -> None:
        self.budget, self.workers, self.now = PageBudget(budget), list(workers), 0.0

    def look(self) -> None:
        by_name = {worker.name: worker for worker in self.workers}
        for peer, limit in self.budget.look([worker.seen for worker in self.workers], self.now):
            assert by_name[peer.name].epoch == peer.epoch
            by_name[peer.name].inbox.append(limit)

    def run(self, seconds: float = 1.0) -> None:
        for _ in range(round(seconds / 0.1)):
            self.look()
            for worker in self.workers:
                worker.settle()
            self.now += 0.1

    @property
    def limits(self) -> dict[str, int]:
        return {worker.name: worker.limit for worker in self.workers}


def test_workers_that_join_divide_the_memory_and_one_that_is_alone_has_all() -> None:
    host = Host(100, Worker("a"))
    host.run()
    assert host.limits == {"a": 100}
    host.workers.append(Worker("b", weight=3.0))
    host.run(CALM_S + 1)
    assert host.limits["a"] + host.limits["b"] == 100
    assert host.limits["b"] > host.limits["a"] >= 10


def test_a_worker_that_wants_pages_gets_what_another_has_only_cached() -> None:
    a, b = Worker("a"), Worker("b")
    host = Host(100, a, b)
    host.run()
    b.cached = 40
    a.change(used=50, wanted=30)
    host.run(0.3)
    assert a.limit >= 80
    assert b.limit == 100 - a.limit


def test_pages_in_use_are_waited_for() -> None:
    a, b = Worker("a"), Worker("b")
    host = Host(100, a, b)
    host.run()
    b.change(used=50, wanted=40)
    host.run()
    b.change(used=85, wanted=0)
    a.change(used=0, wanted=500)
    host.run()
    assert b.limit < 85
    assert b.held == 85
    assert a.limit == 15
    b.change(used=60, wanted=0)
    host.run(0.3)
    assert a.limit + b.held == 100
    assert a.limit == 40


def test_limits_stand_still_when_needs_go_up_and_down_within_them() -> None:
    a, b = Worker("a"), Worker("b")
    host = Host(100, a, b)
    host.run(CALM_S + 1)
    before = host.limits, a.ack_seq, b.ack_seq
    for turn in range(40):
        a.change(used=20 + 15 * (turn % 2), wanted=0)
        b.change(used=35 - 15 * (turn % 2), wanted=0)
        host.run(0.3)
    assert (host.limits, a.ack_seq, b.ack_seq) == before


def test_a_lost_worker_keeps_its_share_until_it_must_be_gone() -> None:
    a, b = Worker("a"), Worker("b")
    host = Host(100, a, b)
    host.run()
    a.change(used=0, wanted=500)
    b.change(used=30, wanted=0)
    host.run()
    held = b.held
    host.workers.remove(b)
    host.run(GONE_S - 0.5)
    assert a.limit + held <= 100
    host.run(1.0)
    assert a.limit == 100


def test_a_worker_that_comes_back_holds_what_it_says() -> None:
    a, b = Worker("a"), Worker("b")
    host = Host(100, a, b)
    host.run()
    a.change(used=40, wanted=500)
    host.run()
    held = b.held
    b.connect()
    host.run(0.3)
    assert b.held <= held
    assert a.limit + b.held <= 100
    assert b.ack_seq >= 1


def test_the_next_router_raises_nothing_before_all_can_be_back() -> None:
    a, b = Worker("a"), Worker("b")
    host = Host(100, a, b)
    host.run()
    a.change(used=30, wanted=500)
    host.run()
    held = a.held
    host.budget, host.workers = PageBudget(100), [b]
    host.now = 100.0
    b.connect()
    host.run(1.0)
    assert b.ack_seq >= 1
    assert b.held + held <= 100
    a.connect()
    host.workers.append(a)
    host.run(SETTLE_S)
    assert a.held + b.held <= 100
    assert a.limit == held


def test_where_only_one_can_have_a_long_sequence_they_take_turns() -> None:
    a, b = Worker("a", longest=80), Worker("b", longest=80)
    host = Host(100, a, b)
    a.change(0, 80)
    b.change(0, 80)
    had = set()
    for _ in range(round(2.5 * TURN_S)):
        host.run(1.0)
        had |= {worker.name for worker in (a, b) if worker.limit >= 80}
        assert a.held + b.held <= 100
    assert had == {"a", "b"}


def test_a_group_over_two_hosts_gets_what_both_have() -> None:
    both, alone = Worker("both", page_bytes=2, hosts=("h", "g")), Worker("alone", hosts=("g",))
    host = Host(100, both, alone)
    both.change(0, 500)
    alone.change(0, 500)
    host.run(CALM_S + 1)
    assert both.limit + alone.limit <= 100
    assert both.limit >= 45


def test_without_a_budget_every_worker_gets_its_whole_pool() -> None:
    host = Host(math.inf, Worker("a"), Worker("b", num_pages=3))
    host.run()
    assert host.limits == {"a": 1000, "b": 3}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), budget=st.integers(5, 400))
def test_workers_never_hold_more_than_the_budget_whatever_is_on_its_way(seed: int, budget: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 5) for _ in range(3)]
    host = Host(
        budget,
        *(
            Worker(str(at), num_pages=budget // size, page_bytes=size, longest=rng.randint(1, 60))
            for at, size in enumerate(sizes)
            if budget // size
        ),
    )
    for _ in range(300):
        worker = rng.choice(host.workers)
        match rng.randrange(7):
            case 0 | 1:
                host.look()
                host.now += rng.choice([0.0, 0.1, 1.0])
            case 2 | 3:
                worker.take_message()
            case 4:
                worker.be_heard()
            case 5:
                worker.change(rng.randint(0, 100), rng.choice([0, 0, rng.randint(0, 300)]))
            case 6 if rng.random() < 0.1:
                worker.connect()
        assert sum(one.held * one.page_bytes for one in host.workers) <= budget
    for worker in host.workers:
        worker.change(0, 0)
    host.run(3 * CALM_S)
    assert host.budget.held_bytes(HOST) == pytest.approx(sum(one.held * one.page_bytes for one in host.workers))
    assert host.budget.held_bytes(HOST) <= budget
