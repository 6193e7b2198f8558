"""The two ends of a hand-off under arbitrary orders of events: one end, and nothing in flight when it comes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipstream.kv_transfer.api.page_layout import streams_between
from slipstream.kv_transfer.handoff.message_plan import Message, StreamPlan
from slipstream.kv_transfer.handoff.state_machines import (
    Action,
    CloseLinks,
    FinishTransfer,
    HandoffState,
    Land,
    NotifyPeers,
    ReceiveHandoff,
    SendHandoff,
)
from tests.support.kv_transfer.tickets import make_ticket

TICKET = make_ticket(first_page=2, num_pages=7, slab_pages=4, num_layers=2)
LEASE_S, GRACE_S = 30.0, 2.0


def send_plans() -> list[StreamPlan]:
    """One source rank that feeds two destination ranks."""
    return [StreamPlan(TICKET, stream) for stream in streams_between(1, 2, 4)]


def receive_plans() -> list[StreamPlan]:
    """One destination rank that is fed by two source ranks."""
    return [StreamPlan(TICKET, stream) for stream in streams_between(2, 1, 4)]


class EndMachine(RuleBasedStateMachine):
    """What must hold for either end. `in_flight` is the truth that the machine under test must agree with."""

    handoff: SendHandoff | ReceiveHandoff

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.num_in_flight = 0
        self.finishes: list[FinishTransfer] = []
        self.was_failed = False

    def note(self, actions: list[Action]) -> None:
        for action in actions:
            assert not self.finishes, f"{action} after the end"
            if isinstance(action, FinishTransfer):
                assert self.num_in_flight == 0, "the end came while something was in flight"
                self.finishes.append(action)
            if isinstance(action, NotifyPeers):
                self.was_failed = True

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.5, 29.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        was_closing = self.handoff.state is HandoffState.CLOSING
        expires = self.now + seconds >= self.handoff.deadline
        self.now += seconds
        actions = self.handoff.tick(self.now)
        if was_closing and expires:
            assert actions == [CloseLinks()]
        self.note(actions)

    @rule()
    def cancelled(self) -> None:
        self.note(self.handoff.fail("cancelled", self.now))

    @rule()
    def peer_aborted(self) -> None:
        was_active = self.handoff.state is HandoffState.ACTIVE
        self.note(self.handoff.fail("the peer gave up", self.now, tell_peers=False))
        self.was_failed |= was_active

    @invariant()
    def agrees_on_what_is_in_flight(self) -> None:
        assert self.handoff.num_in_flight == self.num_in_flight
        assert self.handoff.is_over == bool(self.finishes)

    def finish_in_flight(self) -> None:
        raise NotImplementedError

    def teardown(self) -> None:
        self.note(self.handoff.fail("the test is over", self.now))
        self.finish_in_flight()
        assert len(self.finishes) == 1
        assert (self.finishes[0].reason is None) == (self.handoff.state is HandoffState.OWNED)
        if self.was_failed:
            assert self.handoff.state is HandoffState.FAILED


class SendMachine(EndMachine):
    def __init__(self) -> None:
        super().__init__()
        self.plans = send_plans()
        self.handoff: SendHandoff = SendHandoff(self.plans, self.now, LEASE_S, GRACE_S)
        self.note(self.handoff.begin(self.now))
        self.ready_pages = [0, 0]
        self.taken: set[tuple[int, int]] = set()
        self.sending: list[Message] = []
        self.num_sent = 0

    @rule(layer=st.integers(0, 1), num_pages=st.integers(0, 12))
    def pages_ready(self, layer: int, num_pages: int) -> None:
        if self.handoff.state is HandoffState.ACTIVE:
            self.ready_pages[layer] = max(self.ready_pages[layer], num_pages)
        self.handoff.pages_ready(layer, num_pages, self.now)

    @rule(stream=st.integers(0, 1), max_layers=st.integers(1, 3))
    def take(self, stream: int, max_layers: int) -> None:
        had_one = self.handoff.has_ready(self.plans[stream])
        message = self.handoff.take(self.plans[stream], self.now, max_layers)
        assert (message is not None) == had_one
        if message is None:
            return
        assert self.handoff.state is HandoffState.ACTIVE
        assert 1 <= message.num_layers <= max_layers
        for number in range(message.num_layers):
            assert (stream, message.index + number) not in self.taken
            self.taken.add((stream, message.index + number))
            end = TICKET.first_page + message.first + message.num_pages
            assert end <= self.ready_pages[message.layer + number]
        self.sending.append(message)
        self.num_in_flight += 1

    @precondition(lambda self: self.num_in_flight)
    @rule(error=st.sampled_from([None, None, None, "the link broke"]))
    def sent(self, error: str | None) -> None:
        self.num_in_flight -= 1
        message = self.sending.pop()
        self.num_sent += message.num_layers if error is None else 0
        was_active = self.handoff.state is HandoffState.ACTIVE
        self.note(self.handoff.sent(message, error, self.now))
        self.was_failed |= was_active and error is not None

    @invariant()
    def owned_means_that_all_was_sent(self) -> None:
        if self.handoff.state is HandoffState.OWNED:
            assert self.num_sent == sum(plan.num_messages for plan in self.plans)

    def finish_in_flight(self) -> None:
        while self.num_in_flight:
            self.sent(None)


class ReceiveMachine(EndMachine):
    def __init__(self) -> None:
        super().__init__()
        self.plans = receive_plans()
        self.handoff: ReceiveHandoff = ReceiveHandoff(self.plans, self.now, LEASE_S, GRACE_S)
        self.note(self.handoff.begin(self.now))
        self.receiving: list[tuple[StreamPlan, Message]] = []
        self.placed: set[tuple[int, int]] = set()

    @rule(
        source_rank=st.sampled_from([0, 0, 1, 1, 2]),
        index=st.integers(0, 6),
        num_layers=st.sampled_from([1, 1, 2, 3]),
        wrong_bytes=st.sampled_from([0, 0, 0, 0, 1]),
    )
    def accept(self, source_rank: int, index: int, num_layers: int, wrong_bytes: int) -> None:
        size = num_layers * self.plans[0].message(index).num_bytes if index < self.plans[0].num_messages else 8
        actions = self.handoff.accept(source_rank, index, size + wrong_bytes, self.now)
        match actions:
            case [Land(plan, message)]:
                assert not wrong_bytes
                assert message.num_layers == num_layers
                assert index % TICKET.num_layers + num_layers <= TICKET.num_layers
                self.num_in_flight += 1
                self.receiving.append((plan, message))
            case _:
                self.note(actions)

    @rule()
    def accept_what_is_missing(self) -> None:
        """Random picks alone would seldom complete a hand-off."""
        busy = {(p.stream.source_rank, m.index + n) for p, m in self.receiving for n in range(m.num_layers)}
        busy |= self.placed
        for plan in self.plans:
            for index in range(plan.num_messages):
                if (plan.stream.source_rank, index) not in busy:
                    self.accept(plan.stream.source_rank, index, 1, 0)

    @precondition(lambda self: self.receiving)
    @rule(outcome=st.sampled_from([(None, True)] * 10 + [("the link broke", False), (None, False)]))
    def received(self, outcome: tuple[str | None, bool]) -> None:
        plan, message = self.receiving.pop()
        self.num_in_flight -= 1
        error, is_whole = outcome
        if is_whole:
            numbers = range(message.index, message.index + message.num_layers)
            self.placed |= {(plan.stream.source_rank, number) for number in numbers}
        self.note(self.handoff.received(plan, message, error, is_whole, self.now))

    @rule()
    def receive_all(self) -> None:
        self.finish_in_flight()

    @invariant()
    def owned_means_that_all_is_in_place(self) -> None:
        if self.handoff.state is HandoffState.OWNED:
            assert len(self.placed) == sum(plan.num_messages for plan in self.plans)

    def finish_in_flight(self) -> None:
        while self.receiving:
            self.received((None, True))


TestSendMachine = SendMachine.TestCase
TestReceiveMachine = ReceiveMachine.TestCase
TestSendMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestReceiveMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def drain(handoff: SendHandoff, plan: StreamPlan) -> list[tuple[int, int]]:
    """(slab, layer) of all that can be taken now."""
    order = []
    while (message := handoff.take(plan, 0.0)) is not None:
        order.append(divmod(message.index, TICKET.num_layers))
    return order


def test_slabs_leave_layer_by_layer_as_they_become_ready() -> None:
    plan = send_plans()[0]
    handoff = SendHandoff([plan], 0.0, LEASE_S)
    assert not handoff.pages_ready(0, 3, 0.0)  # the first slab ends at page 4
    assert handoff.pages_ready(0, 8, 0.0)
    assert drain(handoff, plan) == [(0, 0), (1, 0)]
    assert not handoff.pages_ready(0, 8, 0.0)
    assert handoff.pages_ready(1, 8, 0.0)
    assert handoff.pages_ready(0, 9, 0.0)
    assert drain(handoff, plan) == [(0, 1), (1, 1), (2, 0)]


def test_layers_of_a_slab_that_are_ready_are_joined() -> None:
    plan = send_plans()[0]
    handoff = SendHandoff([plan], 0.0, LEASE_S)
    assert not handoff.all_layers_ready(3, 0.0)  # the first slab ends at page 4
    assert handoff.all_layers_ready(8, 0.0)
    messages = []
    while (message := handoff.take(plan, 0.0, 8)) is not None:
        messages.append((message.index, message.layer, message.num_layers, message.num_bytes))
    assert messages == [(0, 0, 2, 512), (2, 0, 2, 1024)]


def test_a_ticket_for_no_pages_is_done_at_once() -> None:
    plans = [StreamPlan(make_ticket(num_pages=0), streams_between(1, 1, 4)[0])]
    for handoff in (SendHandoff(plans, 0.0, LEASE_S), ReceiveHandoff(plans, 0.0, LEASE_S)):
        assert handoff.begin(1.0) == [FinishTransfer(None, 0, 0.0)]


Fault = Callable[[ReceiveHandoff, float], list[Action]]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda h, now: h.accept(0, 0, 256, now) and h.accept(0, 0, 256, now), "message 0 of source rank 0 came twice"),
        (lambda h, now: h.accept(0, 0, 512, now) and h.accept(0, 1, 256, now), "message 1 of source rank 0 came twice"),
        (lambda h, now: h.accept(0, 1, 256, now) and h.accept(0, 0, 512, now), "message 0 of source rank 0 came twice"),
        (lambda h, now: h.accept(0, 1, 24, now), "rank 0 of the source sent message 1 with 24 bytes, not 256 a layer"),
        (
            lambda h, now: h.accept(0, 0, 768, now),
            "rank 0 of the source sent message 0 with 768 bytes, not 256 a layer",
        ),
        (
            lambda h, now: h.accept(0, 1, 512, now),
            "rank 0 of the source sent message 1 with 512 bytes, not 256 a layer",
        ),
        (lambda h, now: h.accept(3, 1, 256, now), "rank 3 of the source has nothing to send here"),
        (lambda h, now: h.accept(0, 6, 256, now), "rank 0 of the source sent message 6 of a stream with 6"),
        (lambda h, now: h.tick(now + LEASE_S), "no progress for 30 s"),
        (lambda h, now: h.fail("cancelled", now), "cancelled"),
    ],
)
def test_failures_say_what_was_wrong(fault: Fault, reason: str) -> None:
    handoff = ReceiveHandoff(receive_plans(), 0.0, LEASE_S)
    actions = fault(handoff, 0.0)
    assert actions[0] == NotifyPeers(reason)


def test_progress_renews_the_lease() -> None:
    handoff = ReceiveHandoff(receive_plans(), 0.0, LEASE_S)
    handoff.arrived(20.0)
    assert handoff.tick(40.0) == []
    assert handoff.tick(50.0) == [NotifyPeers("no progress for 30 s"), FinishTransfer("no progress for 30 s", 0, 0.0)]


def test_what_stays_in_flight_past_the_grace_time_has_its_links_cut() -> None:
    handoff = ReceiveHandoff(receive_plans(), 0.0, LEASE_S, GRACE_S)
    plan = handoff.plans[0]
    handoff.accept(0, 1, plan.message(1).num_bytes, 1.0)
    assert handoff.fail("cancelled", 2.0) == [NotifyPeers("cancelled")]
    assert handoff.tick(3.9) == []
    assert handoff.tick(4.0) == [CloseLinks()]
    assert handoff.received(plan, plan.message(1), "the link was cut", False, 4.1) == [
        FinishTransfer("cancelled", 0, 3.0999999999999996)
    ]
