"""Workers of each kind of engine, side by side, for the contract tests: native, mock and simulated.

A world has workers that reach each other's pages, and time that passes only in `run`. A new kind of engine gets a world
of its own here and a line in `tests/workers/interface/test_worker_contract.py`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from slipstream.cluster.tools.sim.engine.page_names import PageNames
from slipstream.cluster.tools.sim.hardware.network import Network, Nic
from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock
from slipstream.cluster.tools.sim.sim_run import find_profile
from slipstream.cluster.tools.sim.worker.sim_worker import SimWorker
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress, TransferKey
from slipstream.router.protocol.messages import Credits, Role, RouterMessage, WorkerMessage
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.step_plan import PageSend, SendProgress
from slipstream.workers.group.group_executor import GroupExecutor
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_worker import MockWorker
from slipstream.workers.roles.worker_protocol import WorkerProtocol
from slipstream.workers.telemetry.stats_collector import StatsCollector
from slipstream.workers.transfers.group_transfers import GroupTransfers, RankOutcome
from slipstream.workers.transfers.ticket_issuer import TicketIssuer

PAGE_TOKENS, NUM_PAGES, MAX_SLOTS, MAX_MODEL_LEN = 8, 40, 4, 160
MAX_STEP_TOKENS, MAX_QUEUED_TOKENS = 16, 400
LEASE_S = 5.0


class ContractWorker(Protocol):
    """One worker of a world. `said` is what it has told its router, in order."""

    peer: PeerId
    said: list[WorkerMessage]

    def hear(self, message: RouterMessage) -> None: ...

    @property
    def num_used_pages(self) -> int:
        """Pages that an attempt owns."""

    @property
    def is_finished(self) -> bool:
        """Whether it has drained."""


class ContractWorld(Protocol):
    def add(self, name: str, role: Role) -> ContractWorker: ...

    def run(self, seconds: float = 1.0) -> None:
        """Lets time pass, which is enough for whatever is under way. A second is less than any lease."""

    def run_until(self, worker: ContractWorker, kind: type[WorkerMessage]) -> None:
        """Lets time pass until the worker says something of this kind; a step may still be under way then."""


def free(worker: ContractWorker, *, at_first: bool = False) -> tuple[int, int, int]:
    """Slots, pages and tokens as last told."""
    credits = [message for message in worker.said if isinstance(message, Credits)]
    _, *numbers = credits[0 if at_first else -1]
    slots, pages, tokens = numbers
    return slots, pages, tokens


def tickets(peer: PeerId) -> TicketIssuer:
    return TicketIssuer(peer, (TransferAddress(peer.name, 1),), 8, 3, 2, 64)


class _CopyingSink:
    """Copies each layer of a prompt's pages into the pool of the destination as soon as it is complete."""

    def __init__(self, worker: NativeContractWorker) -> None:
        self._worker = worker
        self._sends: dict[int, PageSend] = {}

    def begin_sends(self, sends: tuple[PageSend, ...]) -> None:
        self._sends |= {send.ticket.transfer_id: send for send in sends}

    def layer_done(self, layer: int, progress: tuple[SendProgress, ...]) -> None:
        for one in progress:
            send = self._sends[one.transfer_id]
            num_ready = max(one.num_pages - send.ticket.first_page, 0)
            pages = np.frombuffer(send.page_ids, np.int32)[:num_ready].tolist()
            self._worker.copy(send.ticket, pages, layer)
            if layer == self._worker.num_layers - 1 and num_ready == send.ticket.num_pages:
                self._worker.world.sent.append((self._worker, send.ticket))


class NativeContractWorker:
    def __init__(self, world: NativeWorld, peer: PeerId, role: Role) -> None:
        self.world, self.peer = world, peer
        self.said: list[WorkerMessage] = []
        self.expected: dict[TransferKey, Sequence[int]] = {}
        self.sources: dict[TransferKey, PeerId] = {}
        config = EngineConfig(
            dtype="float32",
            page_tokens=PAGE_TOKENS,
            num_pages=NUM_PAGES,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_SLOTS,
            max_step_tokens=MAX_STEP_TOKENS,
            scheduler_policy="guaranteed_no_evict" if world.reserves_output else "max_utilization",
        )
        self._runner = build_runner(world.model_dir, config, NUM_PAGES)
        self._runner.sink = _CopyingSink(self)
        self.transfers = GroupTransfers([self])
        limits = replace(engine_limits(world.model_dir, config), max_queued_tokens=MAX_QUEUED_TOKENS)
        engine = self.engine = NativeEngine(limits, GroupExecutor(self._runner, (), self.transfers))
        stats = StatsCollector(engine, self.transfers)
        self.protocol = WorkerProtocol.in_role(role, engine, self.transfers, tickets(peer), LEASE_S, stats)
        self.said += self.protocol.reports(0.0)

    @property
    def num_layers(self) -> int:
        return len(self._runner.page_bytes())

    def copy(self, ticket: HandoffTicket, pages: Sequence[int], layer: int) -> None:
        destination = self.world.workers[ticket.destination]
        target = destination.expected.get(ticket.key)
        if target is not None:
            destination._runner.page_bytes()[layer, list(target[: len(pages)])] = self._runner.page_bytes()[
                layer, list(pages)
            ]

    def hear(self, message: RouterMessage) -> None:
        self.said += self.protocol.handle(message, self.world.now_s)
        self.world.end_transfers()
        self.said += self.protocol.reports(self.world.now_s)

    def turn(self) -> bool:
        """One step, if there is something to compute."""
        if not self.engine.has_work:
            return False
        self.said += self.protocol.role.sampled(self.engine.step())
        return True

    def end(self, transfer: TransferKey, failure: str | None) -> None:
        self.expected.pop(transfer, None)
        ended = self.transfers.ended(0, RankOutcome(transfer, failure, 100, 0.01))
        if ended is not None:
            self.said += self.protocol.transfer_ended(ended, self.world.now_s)

    @property
    def num_used_pages(self) -> int:
        self.engine.check_integrity()
        return sum(
            num for state, num in self.engine.page_counts().items() if state not in ("free", "cached", "withheld")
        )

    @property
    def is_finished(self) -> bool:
        return self.protocol.is_finished

    def expect(self, ticket: HandoffTicket, page_ids: Sequence[int], source: PeerId, source_tp: int) -> None:
        self.expected[ticket.key], self.sources[ticket.key] = page_ids, source
        if not page_ids:
            self.world.sent.append((self, ticket))

    def send(self, ticket: HandoffTicket, page_ids: Sequence[int]) -> None:
        for layer in range(self.num_layers):
            self.copy(ticket, page_ids, layer)
        self.world.sent.append((self, ticket))

    def cancel(self, transfer: TransferKey) -> None:
        self.world.failed.append((self, transfer, "cancelled"))

    def peer_lost(self, peer: PeerId) -> None:
        for transfer in self.transfers.active:
            if peer in (transfer.destination, self.sources.get(transfer)):
                self.world.failed.append((self, transfer, f"{peer.name} is gone"))

    def begin_epoch(self, worker: PeerId) -> None:
        raise AssertionError("a world has one epoch")


class NativeWorld:
    def __init__(self, model_dir: Path, reserves_output: bool = False) -> None:
        self.model_dir = model_dir
        self.reserves_output = reserves_output
        self.now_s = 0.0
        self.workers: dict[PeerId, NativeContractWorker] = {}
        self.sent: list[tuple[NativeContractWorker, HandoffTicket]] = []
        self.failed: list[tuple[NativeContractWorker, TransferKey, str]] = []

    def add(self, name: str, role: Role) -> NativeContractWorker:
        peer = PeerId(name, 1)
        worker = self.workers[peer] = NativeContractWorker(self, peer, role)
        return worker

    def run(self, seconds: float = 1.0) -> None:
        while self._turn():
            pass
        self.now_s += seconds
        for worker in self.workers.values():
            worker.said += worker.protocol.tick(self.now_s)
            worker.said += worker.protocol.reports(self.now_s)

    def run_until(self, worker: ContractWorker, kind: type[WorkerMessage]) -> None:
        while not any(isinstance(message, kind) for message in worker.said):
            assert self._turn(), f"{worker.peer.name} says no {kind.__name__}"

    def _turn(self) -> bool:
        is_busy = bool(self.sent)
        for worker in self.workers.values():
            is_busy |= worker.turn()
        for sender, ticket in self.sent:
            for worker in {sender, self.workers[ticket.destination]}:
                worker.end(ticket.key, None)
        self.sent.clear()
        self.end_transfers()
        for worker in self.workers.values():
            worker.said += worker.protocol.reports(self.now_s)
        return is_busy

    def end_transfers(self) -> None:
        failed, self.failed = self.failed, []
        for worker, transfer, reason in failed:
            worker.end(transfer, reason)


class MockContractWorker(MockWorker):
    def __init__(self, world: MockWorld, peer: PeerId, role: Role) -> None:
        profile = MockProfile(
            page_tokens=PAGE_TOKENS,
            num_pages=NUM_PAGES,
            max_slots=MAX_SLOTS,
            max_model_len=MAX_MODEL_LEN,
            max_step_tokens=MAX_STEP_TOKENS,
            max_queued_tokens=MAX_QUEUED_TOKENS,
            step_s=0.001,
            transfer_s=0.001,
            start_lease_s=LEASE_S,
            reserves_output=world.reserves_output,
        )
        super().__init__(profile, role, tickets(peer), has_stats=True)
        self.peer, self._world = peer, world
        self.said = self.reports(0.0)

    def hear(self, message: RouterMessage) -> None:
        self.said += self.handle(message, self._world.now_s)
        self.said += self.reports(self._world.now_s)

    @property
    def num_used_pages(self) -> int:
        return self.engine.page_counts()["active"]

    @property
    def is_finished(self) -> bool:
        return self.protocol.is_finished


class MockWorld:
    def __init__(self, reserves_output: bool = False) -> None:
        self.reserves_output = reserves_output
        self.now_s = 0.0
        self.workers: list[MockContractWorker] = []

    def add(self, name: str, role: Role) -> MockContractWorker:
        self.workers.append(MockContractWorker(self, PeerId(name, 1), role))
        return self.workers[-1]

    def run(self, seconds: float = 1.0) -> None:
        until_s = self.now_s + seconds
        while self._turn(until_s):
            pass
        self.now_s = until_s
        for worker in self.workers:
            worker.said += worker.reports(until_s)

    def run_until(self, worker: ContractWorker, kind: type[WorkerMessage]) -> None:
        while not any(isinstance(message, kind) for message in worker.said):
            assert self._turn(self.now_s + 1.0), f"{worker.peer.name} says no {kind.__name__}"

    def _turn(self, until_s: float) -> bool:
        due = [(at_s, worker) for worker in self.workers if (at_s := worker.next_deadline_s()) is not None]
        at_s, worker = min(due, key=lambda one: one[0], default=(float("inf"), None))
        if worker is None or at_s > until_s:
            return False
        self.now_s = max(self.now_s, at_s)
        worker.said += worker.advance(self.now_s)
        worker.said += worker.reports(self.now_s)
        return True


class SimContractWorker:
    def __init__(self, world: SimWorld, peer: PeerId, role: Role) -> None:
        self.peer, self._world = peer, world
        self.said: list[WorkerMessage] = []
        self.is_finished = False
        profile = world.profile
        hello = replace(profile.hello(peer, role, 0, PAGE_TOKENS, False), num_pages=NUM_PAGES)
        rng = random.Random(0)
        self.worker = SimWorker(world, hello, profile, world.nic, tickets(peer), 0.0, rng)

    def hear(self, message: RouterMessage) -> None:
        self.worker.hear(message)

    @property
    def num_used_pages(self) -> int:
        self.worker.check_integrity()
        return self.worker.allocator.num_used


class SimWorld:
    """Surroundings of simulated workers, without a router. Their answers end after `LENGTH` tokens."""

    LENGTH = 6

    def __init__(self, reserves_output: bool = False) -> None:
        self.clock = VirtualClock()
        self.network = Network(self.clock, 1e9, 1e-4, 2.0)
        profile = find_profile("h200-llama-8b")
        of_role = {
            "max_slots": MAX_SLOTS,
            "max_step_tokens": MAX_STEP_TOKENS,
            "max_queued_tokens": MAX_QUEUED_TOKENS,
        }
        self.profile = replace(
            profile,
            max_model_len=MAX_MODEL_LEN,
            reserves_output=reserves_output,
            prefill=replace(profile.prefill, **of_role),
            decode=replace(profile.decode, **of_role),
        )
        self.nic = Nic()
        self.workers: dict[PeerId, SimContractWorker] = {}

    def add(self, name: str, role: Role) -> SimContractWorker:
        peer = PeerId(name, 1)
        worker = self.workers[peer] = SimContractWorker(self, peer, role)
        worker.worker.begin()
        return worker

    def run(self, seconds: float = 1.0) -> None:
        until_s = self.clock.now_s + seconds
        while (self.clock.next_s or until_s) < until_s:
            self.clock.step()
        self.clock.now_s = until_s

    def run_until(self, worker: ContractWorker, kind: type[WorkerMessage]) -> None:
        while not any(isinstance(message, kind) for message in worker.said):
            assert self.clock.events, f"{worker.peer.name} says no {kind.__name__}"
            self.clock.step()

    def tell(self, worker: SimWorker, messages: Sequence[WorkerMessage]) -> None:
        self.workers[worker.hello.worker].said += messages

    def find(self, peer: PeerId) -> SimWorker | None:
        return self.workers[peer].worker if peer in self.workers else None

    def facts(self, request_id: str) -> tuple[int, PageNames | None]:
        return self.LENGTH, None

    def busy_changed(self, worker: SimWorker) -> None:
        """Every worker has cores of its own."""

    def drained(self, worker: SimWorker) -> None:
        self.workers[worker.hello.worker].is_finished = True
