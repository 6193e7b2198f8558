"""A worker under virtual time, as its router sees it: the protocol of every worker, with the times of a profile.

Its attempts and their pages are in `attempt_engine.py`, pages on their way in `sim_transfers.py`, and the steps in
`sim_engine.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from slipstream.cluster.tools.sim.engine.decode_batch import DecodeBatch
from slipstream.cluster.tools.sim.engine.page_allocator import PageAllocator
from slipstream.cluster.tools.sim.engine.sim_attempt import AttemptState, Key, Peer, SimAttempt
from slipstream.cluster.tools.sim.engine.sim_engine import SimEngine
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.cluster.tools.sim.hardware.network import Network, Nic
from slipstream.cluster.tools.sim.worker.attempt_engine import AttemptEngine
from slipstream.cluster.tools.sim.worker.environment import Environment
from slipstream.cluster.tools.sim.worker.outbox import Outbox
from slipstream.cluster.tools.sim.worker.sim_migrations import SimMigrations
from slipstream.cluster.tools.sim.worker.sim_transfers import SimTransfers
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Drain,
    Extend,
    Hello,
    Reserve,
    RouterMessage,
    Start,
    StepTime,
    StepTimes,
    TokenChunk,
    WorkerMessage,
)
from slipstream.workers.interface.page_transfers import TransferOutcome
from slipstream.workers.roles.worker_protocol import WorkerProtocol
from slipstream.workers.transfers.ticket_issuer import TicketIssuer


class SimWorker:
    """One incarnation of a worker: when it dies, all its attempts die with it."""

    def __init__(
        self,
        world: Environment[SimWorker],
        hello: Hello,
        profile: WorkerProfile,
        nic: Nic,
        tickets: TicketIssuer,
        report_s: float,
        rng: random.Random,
    ) -> None:
        self.hello = hello
        self.nic = nic
        self.is_alive = True
        self.page_bytes = hello.page_tokens * profile.kv_bytes_per_token
        self.world = world
        self.attempts: dict[Key, SimAttempt] = {}
        batch = DecodeBatch()
        allocator = self.allocator = PageAllocator(hello.num_pages, hello.page_tokens, batch, hello.reserves_output)
        role = profile.of(hello.role)
        steps = self.engine = SimEngine(world.clock, role, profile.noise, allocator, batch, report_s, rng, self)
        transfers = self._transfers = SimTransfers(
            self, world.clock, hello.page_tokens, profile.num_layers, role.max_step_tokens
        )
        migrations = SimMigrations(self.attempts, allocator, steps, world.find)
        engine = self._engine = AttemptEngine(
            self.attempts, allocator, steps, transfers, migrations, world.facts, role, hello.max_model_len
        )
        self._protocol = WorkerProtocol.in_role(hello.role, engine, transfers, tickets)
        self._clock = world.clock
        self._profile = profile
        self._late: set[Key] = set()  # reservations that wait for the end of a step
        self._outbox = Outbox(allocator.prefix_cache.changes)

    def begin(self) -> None:
        """It has said hello, and tells what is free and how long its steps take."""
        self._outbox.add(StepTimes(tuple(self._profile.of(self.hello.role).steps(self.hello))))
        self.flush()

    def hear(self, message: RouterMessage) -> None:
        """Something from the router."""
        if not self.is_alive:
            return
        match message:
            case Reserve() | Adopt() | Extend():
                step_end_s = self.engine.step_end_s if self._profile.hears_between_steps else None
                if step_end_s is not None:
                    self._late.add(_key_of(message))
                    self._clock.at(step_end_s, self._hear_late, message)
                    return
            case Cancel(request_id, attempt):
                self._late.discard((request_id, attempt))
        self._handle(message)
        match message:
            case Start(request_id, attempt):
                started = self.attempts.get((request_id, attempt))
                if started is None or started.state is not AttemptState.DECODING:
                    return  # its pages are still on their way: there is no news
            case Drain():
                self.engine.tell_each_step()  # so that the last token of a sequence that moves is known
        self.flush()

    def _hear_late(self, message: Reserve | Adopt | Extend) -> None:
        key = _key_of(message)
        if self.is_alive and key in self._late:
            self._late.remove(key)
            self._handle(message)
            self.flush()

    def _handle(self, message: RouterMessage) -> None:
        now_s = self._clock.now_s
        self._say(self._protocol.handle(message, now_s))
        for outcome in self._transfers.take_ended():
            self._say(self._protocol.transfer_ended(outcome, now_s))

    def landed(self, ticket: HandoffTicket, seconds: float) -> None:
        """The pages of a ticket came."""
        if self._transfers.landed(ticket, seconds):
            self.flush()

    def transfer_ended(self, outcome: TransferOutcome) -> None:
        self._say(self._protocol.transfer_ended(outcome, self._clock.now_s))

    def die(self) -> None:
        """Everything here is gone; others learn of it from the router."""
        self.is_alive = False
        self.engine.end()
        self._transfers.abort()
        self.attempts.clear()

    @property
    def name(self) -> str:
        return self.hello.worker.name

    @property
    def network(self) -> Network:
        return self.world.network

    def find_peer(self, peer: PeerId) -> Peer | None:
        return self.world.find(peer)

    def check_integrity(self) -> None:
        """Raises AssertionError if somebody holds pages of a worker that has nothing to do."""
        assert self.attempts or not self.allocator.num_used, (
            f"{self.name}: {self.allocator.num_used} pages have no owner"
        )

    def prompt_begins(self, attempt: SimAttempt) -> None:
        if self.hello.role == "prefill":
            self._transfers.begin_prompt(attempt)

    def prompt_computed(self, attempt: SimAttempt, chunks: list[TokenChunk]) -> None:
        is_last = attempt.num_reported + 1 >= attempt.stop_at
        chunks.append(attempt.say(attempt.num_reported + 1, "stop" if is_last else None))
        if self.hello.role == "prefill":
            attempt.state = AttemptState.SENDING
            self._transfers.finish_prompt(attempt)
        elif is_last:
            self._engine.end(attempt)
        else:
            self.engine.decode(attempt)

    def answer_ended(self, attempt: SimAttempt) -> None:
        self._engine.end(attempt)

    def stopped(self, attempts: list[SimAttempt]) -> None:
        for attempt in attempts:
            attempt.take_stock()
            self.allocator.hold(attempt, attempt.num_tokens)
        self._say(self._protocol.role.sampled(()))
        for attempt in attempts:
            if attempt.state is AttemptState.STOPPED:  # it has outgrown its ticket, and was not frozen
                self.engine.decode(attempt)

    def step_sampled(self, sample: StepTime) -> None:
        self._outbox.add_last(StepTimes((sample,)))

    def steps_ended(self, chunks: list[TokenChunk]) -> None:
        if chunks:
            output, *others = self._protocol.role.sampled(chunks)
            self._outbox.add_first(output)  # what else the end of the step has brought follows from it
            self._say(others)
        for outcome in self._transfers.take_ended():
            self._say(self._protocol.transfer_ended(outcome, self._clock.now_s))
        self.flush()

    def busy_changed(self) -> None:
        self.world.busy_changed(self)

    def _say(self, messages: Iterable[WorkerMessage]) -> None:
        """With the next `flush`."""
        for message in messages:
            self._outbox.add(message)

    def flush(self) -> None:
        """Everything that is news goes to the router."""
        if not self.is_alive:
            return
        if (pages := self._protocol.pages.due(self._clock.now_s)) is not None:
            self._outbox.add(pages)
        out = self._outbox.take(self._protocol.count_credits(), self.engine.has_told_all)
        self.engine.has_told_all = False
        if out:
            self.world.tell(self, out)
        if self._protocol.is_draining and not self.attempts and not self._late:
            self.world.drained(self)


def _key_of(message: Reserve | Adopt | Extend) -> Key:
    if isinstance(message, Extend):
        return message.request_id, message.attempt
    return message.request.request_id, message.request.attempt
