"""A worker under virtual time, as its router sees it: the messages of `workers/`, the times of a profile.

    Generate --------------> queued --steps--> decoding --> finished                          (decode worker)
    Reserve --> reserved --pages and Start--> decoding --> finished                           (decode worker)
    Prefill ---------------> queued --steps--> sending --pages there--> gone                  (prefill worker)

Its steps are in `engine.py`, pages that leave for another worker in `prompt_sends.py` (of prompts) and `moves.py` (of
sequences that move while they decode).
"""

from __future__ import annotations

import random

from slipstream.cluster.tools.sim.engine.decode_batch import DecodeBatch
from slipstream.cluster.tools.sim.engine.page_allocator import PageAllocator
from slipstream.cluster.tools.sim.engine.sim_attempt import AttemptState, Key, Peer, SimAttempt
from slipstream.cluster.tools.sim.engine.sim_engine import SimEngine
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.cluster.tools.sim.hardware.network import Network, Nic
from slipstream.cluster.tools.sim.worker.environment import Environment
from slipstream.cluster.tools.sim.worker.outbox import Capacity, Outbox
from slipstream.cluster.tools.sim.worker.prompt_sends import PromptSends
from slipstream.cluster.tools.sim.worker.sim_migrations import SimMigrations
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Drain,
    EngineRequest,
    Extend,
    Failed,
    Generate,
    HandedOff,
    Hello,
    Migrate,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    Resume,
    RouterMessage,
    Start,
    StepOutput,
    StepTime,
    StepTimes,
    TokenChunk,
    WorkerMessage,
)
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
        self.is_draining = False
        self.tickets = tickets
        self.page_bytes = hello.page_tokens * profile.kv_bytes_per_token
        self.world = world
        self.jobs: dict[Key, SimAttempt] = {}
        batch = DecodeBatch()
        self.room = PageAllocator(hello.num_pages, hello.page_tokens, batch)
        role = profile.of(hello.role)
        self.engine = SimEngine(world.clock, role, profile.noise, self.room, batch, report_s, rng, self)
        self._clock = world.clock
        self._profile = profile
        self._role = role
        self._late: set[Key] = set()  # reservations that wait for the end of a step
        self._moves = SimMigrations(self)
        self._sends = PromptSends(self, world.clock, profile.num_layers, role.max_step_tokens)
        self._last_seq = 0
        self._most_growth = 1 + hello.num_pages // 64  # pages that answers take before the next word of them
        self._outbox = Outbox(self.room.changes)

    # ---- what comes in

    def begin(self) -> None:
        """It has said hello, and tells what is free and how long its steps take."""
        self.say(StepTimes(tuple(self._role.steps(self.hello))))
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
                self._take(message)
            case Prefill(seq, request, ticket):
                self._last_seq = max(self._last_seq, seq)
                self._prefill(request, ticket)
            case Start(request_id, attempt, token_ids):
                if not self._start((request_id, attempt), len(token_ids)):
                    return  # its pages are still on their way: nothing is news
            case Generate(seq, request):
                self._last_seq = max(self._last_seq, seq)
                self._generate(request)
            case Migrate():
                self._moves.migrate(message)
            case Resume(request_id, attempt):
                self._moves.resume(self.jobs.get((request_id, attempt)))
            case Cancel(request_id, attempt):
                self._late.discard((request_id, attempt))
                self.drop(self.jobs.get((request_id, attempt)))
            case PeerLost(peer):
                self._peer_lost(peer)
            case Drain():
                self.is_draining = True
                self.engine.tell_each_step()  # whoever moves is to be known to the last token
            case _:
                pass
        self.flush()

    def _hear_late(self, message: Reserve | Adopt | Extend) -> None:
        key = _key_of(message)
        if self.is_alive and key in self._late:
            self._late.remove(key)
            self._take(message)
            self.flush()

    def _take(self, message: Reserve | Adopt | Extend) -> None:
        """What asks for pages."""
        self._last_seq = max(self._last_seq, message.seq)
        match message:
            case Reserve(request=request, source=source):
                self._reserve(request, source)
            case Adopt():
                self._moves.adopt(message)
            case Extend():
                self._moves.extend(message)

    def die(self) -> None:
        """Everything here is gone; others learn of it from the router."""
        self.is_alive = False
        self.engine.end()
        for job in self.jobs.values():
            if job.transfer is not None:
                self.world.network.abort(job.transfer)
            self._moves.ended(job)
        self.jobs.clear()

    # ---- what can be asked

    @property
    def name(self) -> str:
        return self.hello.worker.name

    @property
    def num_jobs(self) -> int:
        return len(self.jobs)

    @property
    def network(self) -> Network:
        return self.world.network

    def find_peer(self, peer: PeerId) -> Peer | None:
        return self.world.find(peer)

    def check_integrity(self) -> None:
        """Raises AssertionError if somebody holds pages of a worker that has nothing to do."""
        assert self.jobs or not self.room.num_used, f"{self.name}: {self.room.num_used} pages are nobody's"

    # ---- attempts

    def admit(self, request: EngineRequest, state: AttemptState, num_room_tokens: int = 1) -> SimAttempt | None:
        """A new attempt with its pages. None: it has been told why not."""
        num_known = (len(request.prompt_ids) + len(request.output_ids)) // 4
        stop_at, names = self.world.facts(request.request_id)
        told = len(request.output_ids) // 4
        key = (request.request_id, request.attempt)
        lease = None if self.is_draining else self.room.lease(names, num_known, num_room_tokens)
        if lease is None:
            self.say(Failed(*key, "draining" if self.is_draining else "no pages", True))
            return None
        stop_at = max(stop_at, told + 1)
        job = SimAttempt(request.request_id, request.attempt, state, num_known, told, told, stop_at, lease, names)
        job.num_cached = lease.num_known * self.hello.page_tokens
        self.jobs[key] = job
        return job

    def _reserve(self, request: EngineRequest, source: PeerId) -> None:
        job = self.admit(request, AttemptState.RESERVED)
        if job is None:
            return
        job.peer = self.world.find(source)
        assert job.lease is not None
        num_missing = -(-job.num_known // self.hello.page_tokens) - job.lease.num_known
        job.ticket = self.tickets.issue(job.lease.num_known, num_missing)
        self.say(Reserved(*job.key, job.num_cached, job.ticket))

    def _prefill(self, request: EngineRequest, ticket: HandoffTicket) -> None:
        job = self.admit(request, AttemptState.QUEUED)
        if job is None:
            return
        job.ticket = ticket
        job.peer = self.world.find(ticket.destination)
        self.engine.compute(job)

    def _generate(self, request: EngineRequest) -> None:
        job = self.jobs.get((request.request_id, request.attempt))
        if job is None:
            job = self.admit(request, AttemptState.QUEUED)
        if job is not None:
            self.engine.compute(job)

    def _start(self, key: Key, num_tokens: int) -> bool:
        """Returns whether it decodes from now on."""
        job = self.jobs.get(key)
        if job is None or job.state is not AttemptState.RESERVED or job.has_started:
            return False
        job.has_started = True
        job.told += num_tokens
        if job.has_landed:
            self.engine.decode(job)
        return job.has_landed

    def landed(self, key: Key, ticket: HandoffTicket, seconds: float) -> None:
        """The pages of a ticket came."""
        job = self.jobs.get(key)
        if job is None or job.has_landed or (job.ticket is not ticket and job.ticket != ticket):
            return
        if not job.is_whole:
            self._moves.copied(job, ticket, seconds)
        else:
            job.has_landed = True
            self.room.remember(job, job.num_known)
            self.say(HandedOff(*key, ticket.num_pages * self.page_bytes, seconds))
            if job.has_started:
                self.engine.decode(job)
        self.flush()

    def drop(self, job: SimAttempt | None) -> None:
        """Nobody wants it any more."""
        if job is None:
            return
        self.engine.drop(job)
        self.end(job)

    def end(self, job: SimAttempt) -> None:
        """It has nothing here any more."""
        del self.jobs[job.key]
        if job.transfer is not None:
            self.world.network.abort(job.transfer)
            job.transfer = None
        self._moves.ended(job)
        self.room.release(job)
        job.state = AttemptState.GONE

    def _peer_lost(self, peer: PeerId) -> None:
        """What was on its way from there or to there will not arrive."""
        self._moves.peer_lost(peer)
        for job in list(self.jobs.values()):
            if job.peer is not None and job.peer.hello.worker == peer and not job.has_landed:
                self.drop(job)
                self.say(Failed(*job.key, f"{peer.name} is gone", True))

    # ---- what the engine does

    def prompt_begins(self, job: SimAttempt) -> None:
        if self.hello.role == "prefill":
            self._sends.begin(job)

    def prompt_computed(self, job: SimAttempt, chunks: list[TokenChunk]) -> None:
        is_last = job.told + 1 >= job.stop_at
        chunks.append(job.say(job.told + 1, "stop" if is_last else None))
        if self.hello.role == "prefill":
            self._sends.finish(job)
        elif is_last:
            self.end(job)
        else:
            self.engine.decode(job)

    def answer_ended(self, job: SimAttempt) -> None:
        self.end(job)

    def stopped(self, job: SimAttempt) -> None:
        self._moves.stopped(job)

    def step_sampled(self, sample: StepTime) -> None:
        self.say(StepTimes((sample,)))

    def steps_ended(self, chunks: list[TokenChunk]) -> None:
        if chunks:
            self._outbox.add_first(StepOutput(tuple(chunks)))  # whatever else the end of the step brought
        self.flush()

    def busy_changed(self) -> None:
        self.world.busy_changed(self)

    # ---- what is told

    def say(self, message: WorkerMessage) -> None:
        """With the next `flush`."""
        self._outbox.add(message)

    def flush(self) -> None:
        """Everything that is news goes to the router."""
        if not self.is_alive:
            return
        out = self._outbox.take(self._capacity(), self.engine.has_told_all)
        self.engine.has_told_all = False
        if out:
            self.world.tell(self, out)
        if self.is_draining and not self.jobs and not self._late:
            self.world.drained(self)

    def _capacity(self) -> Capacity:
        if self.is_draining:
            return self._last_seq, 0, 0, 0
        role, engine = self._role, self.engine
        num_decoding = len(engine.batch)
        slots = role.max_slots - len(self.jobs)
        pages = self.room.num_free - min(num_decoding, self._most_growth)
        tokens = role.max_queued_tokens - engine.prompts.num_tokens - num_decoding
        return self._last_seq, slots if slots > 0 else 0, pages if pages > 0 else 0, tokens if tokens > 0 else 0


def _key_of(message: Reserve | Adopt | Extend) -> Key:
    if isinstance(message, Extend):
        return message.request_id, message.attempt
    return message.request.request_id, message.request.attempt
