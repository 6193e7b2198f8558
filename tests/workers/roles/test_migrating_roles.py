"""A sequence that moves between two decode roles over real engines: whatever happens on the way, one of them goes on
with it and every page comes back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress
from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Copied,
    EngineRequest,
    Extend,
    Failed,
    Frozen,
    Generate,
    HandedOff,
    Migrate,
    Reserved,
    Resume,
    SamplingParams,
    Start,
    StepOutput,
    WorkerMessage,
    pack_ids,
)
from slipstream.workers.engine.kv_cache.page_states import PageState
from slipstream.workers.engine.scheduling.sequence import SequenceState
from tests.workers.roles.test_roles import LEASE_S, Bench, make_request, make_ticket

SOURCE = PeerId("s", 1)
OLD, NEW = ("r", 0), ("r", 1)


def tokens_of(messages: Sequence[WorkerMessage]) -> list[int]:
    return [token for m in messages if isinstance(m, StepOutput) for chunk in m.chunks for token in chunk.token_ids]


class Pair:
    """A source that decodes one request, and a destination. `output` are the tokens that it has reported."""

    def __init__(self, max_tokens: int = 30, num_prompt: int = 10) -> None:
        self.source, self.destination = Bench("decode"), Bench("decode")
        self.request = make_request(num_prompt=num_prompt, max_tokens=max_tokens)
        self.source.say(Generate(1, self.request))
        self.output: list[int] = []
        while not self.output:
            self.go_on()

    def go_on(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            self.output += tokens_of(self.source.step())

    @property
    def next_attempt(self) -> EngineRequest:
        return EngineRequest("r", 1, self.request.prompt_ids, pack_ids(self.output), self.request.sampling)

    def ticket(self, answer: Sequence[WorkerMessage]) -> HandoffTicket:
        (reserved,) = answer
        assert isinstance(reserved, Reserved)
        return reserved.ticket

    def adopt(self, num_room_tokens: int) -> HandoffTicket:
        return self.ticket(self.destination.say(Adopt(1, self.next_attempt, SOURCE, 1, num_room_tokens)))

    def freeze(self, ticket: HandoffTicket) -> None:
        assert self.source.say(Migrate(*OLD, 1, ticket, True)) == [Frozen(*OLD, len(self.output))]

    def start(self, num_known: int) -> list[WorkerMessage]:
        return self.destination.say(Start(*NEW, tuple(self.output[num_known:])))

    def land(self, ticket: HandoffTicket) -> list[WorkerMessage]:
        """All pages come whole."""
        taken = dict(self.source.ranks[0].sent)[ticket.key]
        landing_in = self.destination.ranks[0].landing_in[ticket.key]
        self.destination.executor.kv[list(landing_in)] = self.source.executor.kv[list(taken)]
        return self.destination.end(ticket.key)

    def check_all_given_back(self) -> None:
        for bench in (self.source, self.destination):
            bench.engine.check_integrity()
            assert (bench.role.num_attempts, bench.busy_pages(), bench.engine.keys()) == (0, {}, [])
            assert bench.transfers.num_active == 0


def undisturbed(num_tokens: int = 30, num_prompt: int = 10) -> list[int]:
    bench = Bench("decode")
    bench.say(Generate(1, make_request(num_prompt=num_prompt, max_tokens=num_tokens)))
    return tokens_of(bench.run())


def test_full_pages_are_copied_while_the_source_goes_on_and_the_rest_while_it_stands_still() -> None:
    pair = Pair()
    page_tokens = pair.source.engine.limits.page_tokens
    pair.go_on(2 * page_tokens)
    num_known = len(pair.output)
    ticket = pair.adopt(0)
    assert ticket.num_pages == (10 + num_known - 1) // page_tokens
    assert pair.source.say(Migrate(*OLD, 1, ticket, False)) == []
    pair.go_on(page_tokens)
    assert pair.land(ticket) == [Copied(*NEW, ticket.transfer_id, 10, 0.5)]
    assert pair.source.end(ticket.key) == []
    missed = tuple(pair.output[num_known:])
    rest = pair.ticket(pair.destination.say(Extend(2, *NEW, missed, page_tokens)))
    num_known = len(pair.output)
    assert rest.first_page == ticket.num_pages
    pair.go_on(2)
    pair.freeze(rest)
    assert not pair.source.engine.has_work
    assert pair.start(num_known) == []
    assert pair.land(rest) == [HandedOff(*NEW, 10, 0.5)]
    pair.source.say(Cancel(*OLD))
    pair.source.end(rest.key)
    assert pair.output + tokens_of(pair.destination.run()) == undisturbed()
    pair.check_all_given_back()


@pytest.mark.parametrize("num_missed", [0, 1, 3])
def test_a_short_sequence_goes_in_one_round_and_may_lack_no_token(num_missed: int) -> None:
    pair = Pair()
    num_known = len(pair.output)
    ticket = pair.adopt(4)
    pair.go_on(num_missed)
    pair.freeze(ticket)
    ((_, page_ids),) = pair.source.ranks[0].sent
    assert len(page_ids) == ticket.num_pages
    assert pair.land(ticket) == [HandedOff(*NEW, 10, 0.5)]
    assert pair.destination.run() == []
    pair.start(num_known)
    pair.source.say(Cancel(*OLD))
    pair.source.end(ticket.key)
    assert pair.output + tokens_of(pair.destination.run()) == undisturbed()
    pair.check_all_given_back()


def test_a_frozen_sequence_that_is_resumed_goes_on_as_if_nothing_had_been() -> None:
    pair = Pair()
    ticket = pair.adopt(4)
    pair.freeze(ticket)
    pair.destination.say(Cancel(*NEW))
    pair.source.say(Resume(*OLD))
    assert pair.source.ranks[0].cancelled == [ticket.key]
    pair.go_on(3)
    assert pair.source.end(ticket.key, "cancelled") == []  # it was given up before
    pair.destination.end(ticket.key, "cancelled")
    assert pair.output + tokens_of(pair.source.run()) == undisturbed()
    pair.check_all_given_back()


def test_a_transfer_that_fails_is_told_of_the_attempt_that_it_was_for_and_nothing_goes_on_by_itself() -> None:
    pair = Pair()
    ticket = pair.adopt(4)
    pair.freeze(ticket)
    (failed,) = pair.source.end(ticket.key, "the link broke")
    assert failed == Failed(*NEW, "pages could not be sent: the link broke", True)
    assert pair.source.engine.state(OLD) is SequenceState.FROZEN
    (failed,) = pair.destination.end(ticket.key, "wrong checksum")
    assert isinstance(failed, Failed)
    pair.source.say(Resume(*OLD))
    assert pair.output + tokens_of(pair.source.run()) == undisturbed()
    pair.check_all_given_back()


def test_the_pages_of_a_sequence_that_ends_while_it_is_copied_stay_until_the_transfer_has_let_go() -> None:
    pair = Pair(max_tokens=20)
    pair.go_on(12)
    ticket = pair.adopt(0)
    pair.source.say(Migrate(*OLD, 1, ticket, False))
    pair.output += tokens_of(pair.source.run())
    assert pair.output == undisturbed(20)
    assert pair.source.busy_pages().keys() == {"draining"}
    assert pair.source.ranks[0].cancelled == [ticket.key]
    assert pair.source.end(ticket.key, "cancelled") == []
    pair.destination.say(Cancel(*NEW))
    pair.destination.end(ticket.key, "cancelled")
    pair.check_all_given_back()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_cancelled_sequence_gives_its_pages_back_once_they_are_not_read_any_more(frozen: bool) -> None:
    pair = Pair()
    pair.go_on(10)
    ticket = pair.adopt(4 if frozen else 0)
    pair.source.say(Migrate(*OLD, 1, ticket, frozen))
    for bench, key in ((pair.source, OLD), (pair.destination, NEW)):
        bench.say(Cancel(*key))
        assert bench.busy_pages().keys() == {"draining"}
        bench.end(ticket.key, "cancelled")
    pair.check_all_given_back()


def test_what_is_not_decoding_here_or_has_outgrown_its_ticket_is_not_sent() -> None:
    pair = Pair()
    (failed,) = pair.source.say(Migrate("x", 0, 1, make_ticket(1, 3), True))
    assert isinstance(failed, Failed)
    assert (failed.request_id, failed.attempt) == ("x", 1)
    ticket = pair.adopt(1)
    pair.go_on(3 * pair.source.engine.limits.page_tokens)
    (failed,) = pair.source.say(Migrate(*OLD, 1, ticket, True))
    assert isinstance(failed, Failed)
    assert failed.attempt == 1
    assert pair.source.transfers.num_active == 0
    pair.destination.say(Cancel(*NEW))
    pair.destination.end(ticket.key, "cancelled")
    pair.source.run()
    pair.check_all_given_back()


def test_copied_pages_that_nobody_asks_more_for_are_given_back_after_the_lease() -> None:
    pair = Pair()
    pair.go_on(10)
    ticket = pair.adopt(0)
    pair.destination.end(ticket.key)
    assert pair.destination.role.next_deadline_s() == LEASE_S
    assert pair.destination.role.expire(LEASE_S - 0.1) == []
    (failed,) = pair.destination.role.expire(LEASE_S)
    assert failed == Failed(*NEW, f"no more of it within {LEASE_S:g} s of landing", True)
    assert pair.destination.say(Extend(2, *NEW, (), 4)) == []  # crossed with it
    pair.source.run()
    pair.check_all_given_back()


def test_an_extension_without_pages_ends_the_adoption() -> None:
    pair = Pair()
    pair.go_on(10)
    ticket = pair.adopt(0)
    pair.destination.end(ticket.key)
    limits = pair.destination.engine.limits
    others = 0
    while pair.destination.engine.capacity().free_pages > 0 and pair.destination.engine.capacity().free_slots > 0:
        others += 1
        sampling = SamplingParams(max_tokens=2, temperature=0.0)
        free = pair.destination.engine.capacity().free_pages * limits.page_tokens
        prompt = pack_ids([others] * min(max(free - 2, 1), limits.max_model_len - 2))
        if pair.destination.engine.reserve(EngineRequest(f"other{others}", 0, prompt, b"", sampling)) is None:
            break
    answer = pair.destination.say(Extend(2, *NEW, (), 5 * limits.page_tokens))
    assert answer == [Failed(*NEW, "no pages", True)]
    for key in pair.destination.engine.keys():  # noqa: SIM118
        pair.destination.engine.abort(key)
    pair.source.run()
    pair.check_all_given_back()


def test_a_sequence_whose_pages_are_sent_is_not_preempted_but_waits_for_a_page() -> None:
    bench = Bench("decode")
    limits = bench.engine.limits
    page_tokens = limits.page_tokens
    first = EngineRequest("a", 0, pack_ids(range(page_tokens)), b"", SamplingParams(max_tokens=30, temperature=0.0))
    bench.say(Generate(1, first))
    bench.step()
    ticket = HandoffTicket(1, PeerId("other", 1), (TransferAddress("h", 1),), 0, 1, 2, 1, 1, 1)
    bench.say(Migrate("a", 0, 1, ticket, False))
    pool = bench.engine._scheduler.pages.pool
    taken = pool.acquire((), bench.engine.page_counts()["free"], PageState.HELD)
    assert taken is not None
    messages = bench.run()
    assert bench.engine.state(("a", 0)) is SequenceState.RUNNING
    assert len(tokens_of(messages)) < 29
    pool.release(taken, PageState.HELD)
    bench.end(ticket.key)
    assert bench.engine.has_work
    messages += bench.run()
    assert bench.engine.stats().total_preemptions == 0
    assert bench.busy_pages() == {}
