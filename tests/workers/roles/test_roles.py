"""The two roles over a real engine: whatever the router says and however transfers end, every page comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given, settings

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress, TransferKey
from slipstream.router.protocol.messages import (
    Cancel,
    EngineRequest,
    Failed,
    Generate,
    HandedOff,
    Prefill,
    Reserve,
    Reserved,
    RouterMessage,
    SamplingParams,
    Start,
    StepOutput,
    TokenChunk,
    WorkerMessage,
    pack_ids,
)
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.scheduling.sequence import SequenceState
from slipstream.workers.group.group_executor import GroupExecutor
from slipstream.workers.roles.decode import DecodeRole
from slipstream.workers.roles.prefill import PrefillRole
from slipstream.workers.roles.role import Role
from slipstream.workers.transfers.group_transfers import GroupTransfers, RankOutcome
from slipstream.workers.transfers.ticket_issuer import TicketIssuer
from tests.support.workers.engine_driver import make_limits
from tests.support.workers.fake_executor import FakeExecutor

PREFILL, DECODE = PeerId("p", 7), PeerId("d", 3)
VOCAB_SIZE = 100
LEASE_S = 5.0


@dataclass
class RecordingRank:
    """A rank's transfer agent as a list of what it was asked for; the test decides how its transfers end."""

    expected: list[TransferKey] = field(default_factory=list)
    landing_in: dict[TransferKey, tuple[int, ...]] = field(default_factory=dict)  # page ids
    sent: list[tuple[TransferKey, tuple[int, ...]]] = field(default_factory=list)
    cancelled: list[TransferKey] = field(default_factory=list)
    lost: list[PeerId] = field(default_factory=list)

    def expect(self, ticket: HandoffTicket, page_ids: Sequence[int], source: PeerId, source_tp: int) -> None:
        assert len(page_ids) == ticket.num_pages
        self.expected.append(ticket.key)
        self.landing_in[ticket.key] = tuple(page_ids)

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> None:
        assert len(page_ids) == ticket.num_pages
        self.sent.append((ticket.key, tuple(page_ids)))

    def cancel(self, transfer: TransferKey) -> None:
        self.cancelled.append(transfer)

    def peer_lost(self, peer: PeerId) -> None:
        self.lost.append(peer)

    def begin_epoch(self, worker: PeerId) -> None:
        raise AssertionError("the role does not know of epochs")


class Bench:
    """A role on its engine, with `num_ranks` ranks and a clock that the test turns."""

    def __init__(self, role: str, num_ranks: int = 1) -> None:
        limits = make_limits()
        self.ranks = [RecordingRank() for _ in range(num_ranks)]
        self.transfers = GroupTransfers(self.ranks)
        executor = FakeExecutor(limits.num_pages, limits.page_tokens, limits.vocab_size)
        self.executor = executor
        self.engine = NativeEngine(limits, GroupExecutor(executor, (), self.transfers))
        office = TicketIssuer(DECODE, (TransferAddress("h", 1),), 2, 1, 1, 1)
        self.role: Role = (
            PrefillRole(self.engine, self.transfers)
            if role == "prefill"
            else DecodeRole(self.engine, self.transfers, office, LEASE_S)
        )
        self.now_s = 0.0

    def say(self, message: RouterMessage) -> list[WorkerMessage]:
        return list(self.role.handle(message, self.now_s))

    def reserve(self, request: EngineRequest) -> HandoffTicket:
        (reserved,) = self.say(Reserve(1, request, PREFILL, 1))
        assert isinstance(reserved, Reserved)
        return reserved.ticket

    def end(self, transfer: TransferKey, failure: str | None = None, rank: int = 0) -> list[WorkerMessage]:
        ended = self.transfers.ended(rank, RankOutcome(transfer, failure, 10, 0.5))
        return [] if ended is None else list(self.role.transfer_ended(ended, self.now_s))

    def step(self) -> list[WorkerMessage]:
        return list(self.role.sampled(self.engine.step()))

    def run(self) -> list[WorkerMessage]:
        messages = []
        while self.engine.has_work:
            messages += self.step()
        return messages

    def busy_pages(self) -> dict[str, int]:
        return {s: n for s, n in self.engine.page_counts().items() if n and s not in ("free", "cached")}


def make_request(name: str = "r", attempt: int = 0, num_prompt: int = 10, max_tokens: int = 3) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return EngineRequest(name, attempt, pack_ids(range(num_prompt)), b"", sampling)


def make_ticket(transfer_id: int = 1, num_pages: int = 3) -> HandoffTicket:
    return HandoffTicket(transfer_id, DECODE, (TransferAddress("h", 1),), 0, num_pages, 2, 1, 1, 1)


def indices(messages: Sequence[WorkerMessage]) -> list[int]:
    return [chunk.index for m in messages if isinstance(m, StepOutput) for chunk in m.chunks]


def test_a_reservation_runs_once_it_has_landed_and_started_in_either_order() -> None:
    for start_first in (True, False):
        bench = Bench("decode")
        request = make_request()
        ticket = bench.reserve(request)
        start = Start("r", 0, (42,))
        if start_first:
            assert bench.say(start) == []
            assert bench.run() == []
        assert bench.end(ticket.key) == [HandedOff("r", 0, 10, 0.5)]
        if not start_first:
            assert bench.run() == []
            assert bench.say(start) == []
        assert indices(bench.run()) == [1, 2]
        assert (bench.role.num_attempts, bench.busy_pages()) == (0, {})


def test_pages_of_a_cancelled_reservation_stay_until_every_rank_has_let_go() -> None:
    bench = Bench("decode", num_ranks=2)
    ticket = bench.reserve(make_request())
    assert bench.say(Cancel("r", 0)) == []
    assert [rank.cancelled for rank in bench.ranks] == [[ticket.key], [ticket.key]]
    assert bench.end(ticket.key, "cancelled", rank=0) == []
    assert bench.busy_pages() == {"draining": 3}
    assert bench.end(ticket.key, None, rank=1) == []
    assert (bench.role.num_attempts, bench.busy_pages()) == (0, {})


def test_a_transfer_that_fails_on_one_rank_fails_once_the_others_have_let_go() -> None:
    bench = Bench("decode", num_ranks=3)
    ticket = bench.reserve(make_request())
    assert bench.end(ticket.key, None, rank=2) == []
    assert bench.end(ticket.key, "checksum", rank=1) == []
    assert [rank.cancelled for rank in bench.ranks] == [[ticket.key], [], []]
    assert bench.busy_pages() == {"reserved": 3}
    assert bench.end(ticket.key, "cancelled", rank=0) == [
        Failed("r", 0, "pages did not arrive: rank 1: checksum", True)
    ]
    assert (bench.role.num_attempts, bench.busy_pages()) == (0, {})


def test_landed_pages_are_given_back_when_no_start_comes_within_the_lease() -> None:
    bench = Bench("decode")
    ticket = bench.reserve(make_request())
    bench.now_s = 1.0
    bench.end(ticket.key)
    assert bench.role.next_deadline_s() == 6.0
    assert list(bench.role.expire(5.9)) == []
    assert list(bench.role.expire(6.0)) == [Failed("r", 0, "no start within 5 s of landing", True)]
    assert (bench.role.num_attempts, bench.busy_pages()) == (0, {})
    assert bench.say(Start("r", 0, (1,))) == []


def test_generate_takes_over_the_pages_of_its_reservation_when_the_transfer_has_let_go() -> None:
    bench = Bench("decode")
    request = make_request()
    ticket = bench.reserve(request)
    assert bench.say(Generate(2, request)) == []
    assert bench.ranks[0].cancelled == [ticket.key]
    assert bench.run() == []
    assert bench.end(ticket.key, "cancelled") == []
    assert indices(bench.run()) == [0, 1, 2]
    assert (bench.role.num_attempts, bench.busy_pages()) == (0, {})


def test_a_start_that_the_engine_refuses_fails_the_attempt_for_good() -> None:
    bench = Bench("decode")
    ticket = bench.reserve(make_request())
    assert bench.say(Start("r", 0, (VOCAB_SIZE,))) == []
    (failed,) = bench.end(ticket.key, "cancelled")
    assert isinstance(failed, Failed)
    assert not failed.retryable
    assert (bench.role.num_attempts, bench.busy_pages()) == (0, {})


def test_a_reservation_beyond_the_free_pages_fails_and_may_be_tried_again() -> None:
    bench = Bench("decode")
    for n in range(3):
        bench.reserve(make_request(f"r{n}", num_prompt=18))
    assert bench.say(Reserve(4, make_request("r3", num_prompt=18), PREFILL, 1)) == [Failed("r3", 0, "no pages", True)]


def test_a_prompt_that_can_never_run_fails_for_good() -> None:
    for role, message in (
        ("decode", Generate(1, make_request(num_prompt=41))),
        ("decode", Reserve(1, make_request(num_prompt=41), PREFILL, 1)),
        ("prefill", Prefill(1, make_request(num_prompt=41), make_ticket(num_pages=11))),
    ):
        (failed,) = Bench(role).say(message)
        assert isinstance(failed, Failed)
        assert not failed.retryable


def test_a_prefill_holds_its_pages_from_its_first_token_until_they_are_sent() -> None:
    bench = Bench("prefill")
    assert bench.say(Prefill(1, make_request(), make_ticket())) == []
    assert indices(bench.run()) == [0]
    assert bench.busy_pages() == {"held": 3}
    assert bench.end(make_ticket().key) == []
    assert (bench.role.num_attempts, bench.busy_pages()) == (0, {})


def test_a_cancelled_prefill_stops_computing_and_keeps_its_pages_until_they_are_let_go() -> None:
    bench = Bench("prefill")
    bench.say(Prefill(1, make_request(), make_ticket()))
    bench.step()  # the first of two
    assert bench.say(Cancel("r", 0)) == []
    assert bench.run() == []
    assert bench.busy_pages() == {"draining": 3}
    assert bench.end(make_ticket().key, "cancelled") == []
    assert (bench.role.num_attempts, bench.busy_pages()) == (0, {})


def test_a_prefill_cancelled_before_its_first_step_is_gone_at_once() -> None:
    bench = Bench("prefill")
    bench.say(Prefill(1, make_request(), make_ticket()))
    assert bench.say(Cancel("r", 0)) == []
    assert (bench.role.num_attempts, bench.transfers.num_active, bench.ranks[0].cancelled) == (0, 0, [])


def test_a_prefill_whose_pages_cannot_be_sent_fails() -> None:
    bench = Bench("prefill")
    bench.say(Prefill(1, make_request(), make_ticket()))
    bench.step()
    assert bench.end(make_ticket().key, "peer lost") == [Failed("r", 0, "pages could not be sent: peer lost", True)]
    assert bench.run() == []
    assert (bench.role.num_attempts, bench.busy_pages()) == (0, {})


def test_a_prefill_without_a_token_says_so_and_gives_its_pages_back_by_itself() -> None:
    bench = Bench("prefill")
    bench.executor.broken_after = 9
    ticket = make_ticket()
    assert bench.say(Prefill(1, make_request(), ticket)) == []
    (step,) = bench.run()
    assert step == StepOutput((TokenChunk("r", 0, 0, (), (), "error"),))
    assert bench.ranks[0].cancelled == [ticket.key]
    assert bench.busy_pages() == {"draining": 3}
    assert bench.end(ticket.key, "cancelled") == []
    assert (bench.role.num_attempts, bench.busy_pages()) == (0, {})


def test_a_generation_without_a_token_says_so_and_is_over() -> None:
    bench = Bench("decode")
    bench.executor.broken_after = 9
    assert bench.say(Generate(1, make_request())) == []
    assert bench.run() == [StepOutput((TokenChunk("r", 0, 0, (), (), "error"),))]
    assert (bench.role.num_attempts, bench.busy_pages()) == (0, {})


def test_a_draining_role_refuses_what_is_new_and_finishes_what_it_has() -> None:
    bench = Bench("decode")
    bench.say(Generate(1, make_request("old")))
    bench.role.refuse("the worker drains")
    assert bench.say(Generate(2, make_request("new"))) == [Failed("new", 0, "the worker drains", True)]
    assert bench.say(Reserve(3, make_request("new"), PREFILL, 1)) == [Failed("new", 0, "the worker drains", True)]
    assert indices(bench.run()) == [0, 1, 2]
    assert bench.role.num_attempts == 0


def test_when_the_engine_breaks_every_attempt_is_told() -> None:
    bench = Bench("decode")
    landed = bench.reserve(make_request("landed"))
    bench.end(landed.key)
    bench.reserve(make_request("landing"))
    bench.say(Generate(1, make_request("running")))
    cancelled = make_request("cancelled")
    bench.reserve(cancelled)
    bench.say(Cancel("cancelled", 0))
    failed = bench.role.fail_all("broken")
    assert {m.request_id for m in failed if isinstance(m, Failed)} == {"landed", "landing", "running"}


NAMES = st.sampled_from(["a", "b", "c"])


@settings(deadline=None)
@given(st.data())
def test_every_page_comes_back_when_the_router_goes_whatever_happened_before(data: st.DataObject) -> None:
    """The end of every transfer is in the hands of hypothesis, and so is the order of everything."""
    role = data.draw(st.sampled_from(["prefill", "decode"]))
    num_ranks = data.draw(st.integers(1, 2))
    bench = Bench(role, num_ranks)
    quiet: dict[TransferKey, set[int]] = {}
    sent_for: dict[TransferKey, tuple[str, int]] = {}
    ticket_ids = iter(range(1, 1000))

    def end_some_transfer(*, of_all: bool) -> None:
        active = [
            (key, rank)
            for key in list(bench.transfers.active)
            for rank in range(num_ranks)
            if rank not in quiet.setdefault(key, set())
        ]
        if active:
            key, rank = active[0] if of_all else data.draw(st.sampled_from(active))
            quiet[key].add(rank)
            # No rank can have sent all pages of a prompt that is still being computed.
            is_computing = bench.engine.state(sent_for.get(key, ("", 0))) is SequenceState.RUNNING
            bench.end(key, "failed" if is_computing else data.draw(st.sampled_from([None, "failed"])), rank)

    for _ in range(data.draw(st.integers(0, 40))):
        name, attempt = data.draw(NAMES), data.draw(st.integers(0, 1))
        num_prompt = {"a": 5, "b": 10, "c": 18}[name]
        request = make_request(name, attempt, num_prompt)
        match data.draw(
            st.sampled_from(["generate", "reserve", "prefill", "start", "cancel", "end", "step", "expire"])
        ):
            case "generate":
                bench.say(Generate(1, request))
            case "reserve":
                bench.say(Reserve(1, request, PREFILL, 1))
            case "prefill":
                ticket = make_ticket(next(ticket_ids), -(-num_prompt // 4))
                sent_for[ticket.key] = (name, attempt)
                bench.say(Prefill(1, request, ticket))
            case "start":
                bench.say(Start(name, attempt, (data.draw(st.integers(0, VOCAB_SIZE)),)))
            case "cancel":
                bench.say(Cancel(name, attempt))
            case "end":
                end_some_transfer(of_all=False)
            case "step":
                if bench.engine.has_work:
                    bench.step()
            case "expire":
                bench.now_s += LEASE_S / 2
                bench.role.expire(bench.now_s)
        bench.engine.check_integrity()
    bench.role.abandon()
    while bench.transfers.num_active:
        end_some_transfer(of_all=True)
    assert bench.role.num_attempts == 0
    assert bench.busy_pages() == {}
    assert bench.engine.keys() == []
    bench.engine.check_integrity()
