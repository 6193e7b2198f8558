"""The engine thread's loop, with a real engine and a router port that keeps what it is given."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.protocol.block_hash import HashChain, pack_block_ids, root_digest
from slipstream.router.protocol.messages import (
    PROTOCOL_VERSION,
    BlocksChanged,
    Credits,
    Drain,
    Failed,
    Generate,
    Hello,
    ResyncBlocks,
    Stats,
    StepOutput,
    Welcome,
    WorkerMessage,
)
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.executor import Executor
from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan
from slipstream.workers.engine_loop import EngineEvent, EngineLoop, GroupBroken, LinkLost, Stop
from slipstream.workers.group.group_executor import GroupExecutor
from slipstream.workers.process.inbox import Inbox
from slipstream.workers.roles.decode import DecodeRole
from slipstream.workers.roles.worker_protocol import WorkerProtocol
from slipstream.workers.telemetry.stats_collector import StatsCollector
from slipstream.workers.telemetry.worker_report import WorkerFailed
from slipstream.workers.transfers.group_transfers import GroupTransfers
from slipstream.workers.transfers.ticket_issuer import TicketIssuer
from tests.support.workers.engine_driver import make_limits, make_request
from tests.support.workers.fake_executor import FakeExecutor

M = TypeVar("M")
TIMEOUT_S = 20.0


@dataclass
class KeptPort:
    """What the loop has sent, batch by batch, and the greetings of its connections."""

    batches: list[list[WorkerMessage]] = field(default_factory=list)
    hellos: list[Hello] = field(default_factory=list)
    num_disconnects: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def connect(self, hello: Hello) -> None:
        with self.changed:
            self.hellos.append(hello)
            self.changed.notify_all()

    def send(self, messages: Sequence[WorkerMessage]) -> None:
        with self.changed:
            self.batches.append(list(messages))
            self.changed.notify_all()

    def disconnect(self) -> None:
        self.num_disconnects += 1

    def all(self, kind: type[M]) -> list[M]:
        return [m for batch in self.batches for m in batch if isinstance(m, kind)]

    def wait(self, kind: type[M], count: int = 1) -> list[M]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.all(kind)) >= count, TIMEOUT_S), self.batches
            return self.all(kind)

    def wait_connect(self, count: int) -> Hello:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.hellos) >= count, TIMEOUT_S)
            return self.hellos[count - 1]


class BrokenExecutor:
    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        raise RuntimeError("the device fell off the bus")


class GatedExecutor:
    """Waits before every step until the test lets it."""

    def __init__(self, executor: Executor) -> None:
        self.gate = threading.Semaphore(0)
        self._executor = executor

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        assert self.gate.acquire(timeout=TIMEOUT_S)
        return self._executor.execute(plan, sampling)


@dataclass
class Running:
    loop: EngineLoop
    inbox: Inbox[EngineEvent]
    port: KeptPort
    thread: threading.Thread
    errors: list[WorkerFailed]
    next_roles: list[str | None]

    def end(self) -> None:
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive()


@contextmanager
def running(
    executor: Executor | None = None,
    drain_s: float = 20.0,
    is_welcome: bool = True,
    stats_interval_s: float = 1.0,
) -> Iterator[Running]:
    limits = make_limits()
    transfers = GroupTransfers(())
    executor = executor or FakeExecutor(limits.num_pages, limits.page_tokens, limits.vocab_size)
    engine = NativeEngine(limits, GroupExecutor(executor, (), transfers))
    office = TicketIssuer(PeerId("d", 10), (TransferAddress("h", 1),), 2, 1, 1, 1)
    inbox: Inbox[EngineEvent] = Inbox(1000)
    port = KeptPort()
    role, stats = (
        DecodeRole(engine, transfers, office, 5.0),
        StatsCollector(engine, transfers, interval_s=stats_interval_s),
    )
    loop = EngineLoop(
        engine=engine,
        protocol=WorkerProtocol(engine, role, transfers, stats, drain_s),
        transfers=transfers,
        inbox=inbox,
        router=port,
        tickets=office,
        hello=lambda peer: Hello(PROTOCOL_VERSION, "", peer, "decode", "m", 1, 1, (), 4, 16, 4, 64, 40),
        show=lambda state, progress: None,
    )
    errors: list[WorkerFailed] = []
    next_roles: list[str | None] = []

    def run() -> None:
        try:
            next_roles.append(loop.run())
        except WorkerFailed as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        port.wait_connect(1)
        if is_welcome:
            inbox.put(Welcome("router"))
        yield Running(loop, inbox, port, thread, errors, next_roles)
    finally:
        inbox.put_always(Stop(drain=False, within_s=0))
        thread.join(TIMEOUT_S)


def test_credits_acknowledge_a_message_only_together_with_its_effect() -> None:
    gated = GatedExecutor(FakeExecutor(16, 4, 100))
    with running(gated) as it:
        assert it.port.wait(Credits) == [Credits(0, 4, 16, 64)]
        it.inbox.put(Generate(1, make_request("a", range(10), max_tokens=2)))
        gated.gate.release()  # eight of ten tokens
        (_, second) = it.port.wait(Credits, 2)
        assert second == Credits(1, 3, 12, 62)
        gated.gate.release()
        gated.gate.release()
        assert it.port.wait(Credits, 4)[-1] == Credits(1, 4, 16, 64)


def test_a_step_is_one_batch_with_all_its_tokens_and_the_credits_after_it() -> None:
    gated = GatedExecutor(FakeExecutor(16, 4, 100))
    with running(gated) as it:
        it.port.wait(Credits)
        for seq, name in enumerate("abc", 1):
            it.inbox.put(Generate(seq, make_request(name, range(2), max_tokens=3)))
        for _ in range(4):
            gated.gate.release()
        it.port.wait(StepOutput, 3)
        full = next(b for b in it.port.batches if sum(isinstance(m, StepOutput) for m in b) and len(b) > 1)
        assert isinstance(full[0], StepOutput)
        steps = it.port.all(StepOutput)
        assert max(len(step.chunks) for step in steps) == 3


def test_an_answer_does_not_wait_for_the_step_that_follows() -> None:
    gated = GatedExecutor(FakeExecutor(16, 4, 100))
    with running(gated) as it:
        it.port.wait(Credits)
        it.inbox.put(Generate(1, make_request("a", range(4), max_tokens=2)))
        it.inbox.put(Generate(2, make_request("too-long", range(41))))
        (failed,) = it.port.wait(Failed)  # while the step waits at the gate
        assert failed.request_id == "too-long"
        assert it.port.all(StepOutput) == []
        gated.gate.release(2)
        assert it.port.wait(StepOutput, 2)


def test_statistics_come_at_once_when_the_last_page_is_given_back() -> None:
    with running(stats_interval_s=1000.0) as it:
        it.port.wait(Stats)
        it.inbox.put(Generate(1, make_request("a", range(10), max_tokens=4)))
        _, last = it.port.wait(Stats, 2)[:2]
        pages = dict(last.pages)
        assert pages["active"] == 0
        assert pages["free"] + pages["cached"] == 16
        assert dict(last.counters)["sampled_tokens"] == 4


def test_a_lost_connection_drops_everything_and_greets_with_the_next_epoch() -> None:
    gated = GatedExecutor(FakeExecutor(16, 4, 100))
    with running(gated) as it:
        it.port.wait(Credits)
        it.inbox.put(Generate(1, make_request("a", range(30))))
        gated.gate.release()
        it.port.wait(Credits, 2)
        it.inbox.put_always(LinkLost())
        gated.gate.release()  # the step that may have begun before
        assert it.port.wait_connect(2).worker == PeerId("d", 12)
        num_before = len(it.port.all(Credits))
        it.inbox.put(Welcome("router"))
        assert it.port.wait(Credits, num_before + 1)[-1] == Credits(0, 4, 16, 64)
        assert it.port.all(StepOutput) == []


def test_a_drain_finishes_what_runs_and_refuses_the_rest() -> None:
    gated = GatedExecutor(FakeExecutor(16, 4, 100))
    with running(gated) as it:
        it.port.wait(Credits)
        it.inbox.put(Generate(1, make_request("a", range(4), max_tokens=3)))
        it.inbox.put(Drain())
        it.inbox.put(Generate(2, make_request("b", range(4))))
        gated.gate.release(3)
        it.end()
        assert it.errors == []
        assert it.port.all(Failed) == [Failed("b", 0, "the worker drains", True)]
        assert [c.index for s in it.port.all(StepOutput) for c in s.chunks] == [0, 1, 2]
        assert it.port.all(Credits)[-1] == Credits(2, 0, 0, 0)


def test_a_drain_ends_at_its_deadline_and_tells_whom_it_leaves_behind() -> None:
    gated = GatedExecutor(FakeExecutor(16, 4, 100))
    with running(gated, drain_s=0.0) as it:
        it.port.wait(Credits)
        it.inbox.put(Generate(1, make_request("a", range(4), max_tokens=30)))
        it.inbox.put(Drain())
        gated.gate.release(3)  # fewer steps than it needs
        it.end()
        assert it.errors == []
        assert it.port.all(Failed) == [Failed("a", 0, "the worker stops", True)]


def test_a_drain_to_another_role_finishes_what_runs_and_leaves_the_router_for_the_next_epoch() -> None:
    gated = GatedExecutor(FakeExecutor(16, 4, 100))
    with running(gated) as it:
        it.port.wait(Credits)
        it.inbox.put(Generate(1, make_request("a", range(4), max_tokens=3)))
        it.inbox.put(Drain("prefill"))
        gated.gate.release(3)
        it.end()
        assert it.next_roles == ["prefill"]
        assert it.port.num_disconnects == 1
        assert [c.index for s in it.port.all(StepOutput) for c in s.chunks] == [0, 1, 2]
        assert it.port.all(Failed) == []
        assert len(it.port.hellos) == 1  # whoever serves the next role says hello


def test_a_drain_to_another_role_hands_back_at_its_deadline_what_has_not_ended() -> None:
    gated = GatedExecutor(FakeExecutor(16, 4, 100))
    with running(gated, drain_s=0.0) as it:
        it.port.wait(Credits)
        it.inbox.put(Generate(1, make_request("a", range(4), max_tokens=30)))
        it.inbox.put(Drain("prefill"))
        gated.gate.release(3)  # fewer steps than it needs
        it.end()
        assert it.next_roles == ["prefill"]
        (failed,) = it.port.all(Failed)
        assert (failed.request_id, failed.retryable) == ("a", True)
        pages = it.loop.engine.page_counts()
        assert pages["active"] == pages["reserved"] == pages["held"] == 0


def test_a_router_that_is_lost_does_not_keep_a_worker_from_its_next_role() -> None:
    gated = GatedExecutor(FakeExecutor(16, 4, 100))
    with running(gated) as it:
        it.port.wait(Credits)
        it.inbox.put(Generate(1, make_request("a", range(4), max_tokens=30)))
        it.inbox.put(Drain("prefill"))
        it.inbox.put_always(LinkLost())
        gated.gate.release()
        it.end()
        assert it.next_roles == ["prefill"]


def test_an_end_that_comes_on_the_way_to_another_role_is_not_forgotten() -> None:
    gated = GatedExecutor(FakeExecutor(16, 4, 100))
    with running(gated) as it:
        it.port.wait(Credits)
        it.inbox.put(Generate(1, make_request("a", range(4), max_tokens=2)))
        it.inbox.put(Drain("prefill"))
        it.inbox.put_always(Stop(drain=True, within_s=20.0))
        gated.gate.release(2)
        it.end()
        assert it.next_roles == [None]


def test_a_broken_engine_fails_every_request_and_ends_the_worker() -> None:
    with running(BrokenExecutor()) as it:
        it.inbox.put(Generate(1, make_request("a", range(4))))
        it.end()
        (error,) = it.errors
        assert "the device fell off the bus" in str(error)
        (failed,) = it.port.all(Failed)
        assert (failed.request_id, failed.retryable) == ("a", True)
        assert "the device fell off the bus" in failed.reason


def test_a_lost_rank_ends_the_worker_even_when_it_is_idle() -> None:
    with running() as it:
        it.inbox.put_always(GroupBroken("rank 1 is gone"))
        it.end()
        assert [str(error) for error in it.errors] == ["rank 1 is gone"]


def test_an_idle_loop_sleeps() -> None:
    """Nothing to do, nothing due: the loop waits for an event without a time limit."""
    with running() as it:
        it.port.wait(Stats)
        deadline = threading.Event()
        for _ in range(1000):
            if it.loop.next_turn_s() is None:
                break
            deadline.wait(0.02)
        assert it.loop.next_turn_s() is None


def test_a_loop_without_a_router_sleeps_until_there_is_one() -> None:
    """It has statistics to tell and nobody to tell them to: that must not keep a core busy."""
    with running(is_welcome=False) as it:
        assert it.loop.next_turn_s() is None


def test_the_prefix_cache_is_told_as_it_changes_and_in_whole_when_asked_and_to_a_new_router() -> None:
    expected = HashChain(root_digest(make_limits().model_id, ""), make_limits().page_tokens)
    expected.extend(array("i", range(10)), 2)
    with running(stats_interval_s=1000.0) as it:
        it.inbox.put(Generate(1, make_request("a", range(10), max_tokens=2)))
        it.port.wait(BlocksChanged)
        it.port.wait(Stats, 2)  # at rest
        told = it.port.all(BlocksChanged)
        assert b"".join(message.stored for message in told) == pack_block_ids(expected.digests)
        assert [message.seq for message in told] == [*range(1, len(told) + 1)]
        it.inbox.put(ResyncBlocks())
        whole = it.port.wait(BlocksChanged, len(told) + 1)[-1]
        assert whole == BlocksChanged(len(told) + 1, True, pack_block_ids(expected.digests), b"")
        it.inbox.put_always(LinkLost())
        it.port.wait_connect(2)
        it.inbox.put(Welcome("router"))
        anew = it.port.wait(BlocksChanged, len(told) + 2)[-1]
        assert anew == BlocksChanged(1, True, pack_block_ids(expected.digests), b"")


@pytest.mark.parametrize("num_items", [0, 3])
def test_the_inbox_refuses_what_is_over_its_limit_but_never_an_ending(num_items: int) -> None:
    inbox: Inbox[int] = Inbox(num_items)
    for item in range(num_items):
        inbox.put(item)
    with pytest.raises(RuntimeError, match=f"{num_items} items wait"):
        inbox.put(99)
    inbox.put_always(100)
    assert inbox.take(0) == [*range(num_items), 100]
    assert inbox.take(0) == []
