"""A worker under virtual time, as its router sees it: the messages of `workers/`, the times of a profile.

    Generate --------------> queued --steps--> decoding --> finished                          (decode worker)
    Reserve --> reserved --pages and Start--> decoding --> finished                           (decode worker)
    Prefill ---------------> queued --steps--> sending --pages there--> gone                  (prefill worker)

What makes it fast is that steps which only decode are not made one by one: a run of them (`step_run.py`) is solved for
the next moment at which something happens: a sequence ends, pages run out, the router is to be told how far everybody
is (`report_s`). What comes in between takes effect at the end of the step that is under way, as in an engine. Steps
with prompts in them are made one by one.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from slipstream.cluster.sim.chain import PageNames
from slipstream.cluster.sim.clock import Clock
from slipstream.cluster.sim.decode_batch import DecodeBatch
from slipstream.cluster.sim.job import Job, State
from slipstream.cluster.sim.network import Card, Network
from slipstream.cluster.sim.profile import WorkerProfile
from slipstream.cluster.sim.sample_pace import SamplePace
from slipstream.cluster.sim.step_run import StepRun
from slipstream.kv_transfer.ticket import HandoffTicket, PeerId
from slipstream.router.messages import (
    BlocksChanged,
    Cancel,
    Credits,
    Drain,
    EngineRequest,
    Failed,
    Generate,
    HandedOff,
    Hello,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    RouterMessage,
    Start,
    StepOutput,
    StepTime,
    StepTimes,
    TokenChunk,
    WorkerMessage,
)
from slipstream.router.prefix.block_hash import pack_block_ids
from slipstream.workers.mock.prefix_cache import Lease, MockPages
from slipstream.workers.ticket_office import TicketOffice


class Surroundings(Protocol):
    """What a worker finds around it: the world."""

    clock: Clock
    network: Network

    def tell(self, worker: SimWorker, messages: Sequence[WorkerMessage]) -> None:
        """To the router, over the network."""

    def find(self, peer: PeerId) -> SimWorker | None:
        """Another worker, if it lives."""

    def facts(self, request_id: str) -> tuple[int, PageNames | None]:
        """Where the model will stop by itself, and the names of the prompt's pages."""

    def busy_changed(self, worker: SimWorker) -> None:
        """It has begun to compute, or has nothing to do any more."""

    def drained(self, worker: SimWorker) -> None:
        """It was told to go and has nothing left."""


class SimWorker:
    """One incarnation of a worker: what ends it ends all that it has."""

    def __init__(
        self,
        world: Surroundings,
        hello: Hello,
        profile: WorkerProfile,
        card: Card,
        tickets: TicketOffice,
        report_s: float,
        rng: random.Random,
    ) -> None:
        self.hello = hello
        self.card = card
        self.slowness = 1.0  # of a worker that is not what it was; also of one that shares its cores
        self.is_alive = True
        self.is_draining = False
        self.busy_s = 0.0
        self._world = world
        self._clock = world.clock
        self._profile = profile
        self._role = profile.of(hello.role)
        self._tickets = tickets
        self._report_s = report_s
        self._rng = rng
        self._page_tokens = hello.page_tokens
        self._page_bytes = hello.page_tokens * profile.kv_bytes_per_token
        self._pages = MockPages(hello.num_pages)
        self._jobs: dict[tuple[str, int], Job] = {}
        self._late: set[tuple[str, int]] = set()  # reservations that wait for the end of a step
        self._queue: deque[Job] = deque()
        self._queued_tokens = 0
        self._batch = DecodeBatch()
        self._run: StepRun | None = None  # the steps that are under way
        self._turn = 0  # of the end that is planned for them: a later one replaces it
        self._chunks: list[tuple[Job, int]] = []
        self._chunk_tokens = 0
        self._report_due_s = math.inf
        self._last_seq = 0
        self._blocks_seq = 0
        self._free = (-1, -1, -1, -1)
        self._tells_all = False
        self._out: list[WorkerMessage] = []
        self._was_busy = False
        self.num_preemptions = 0
        self._sample_pace = SamplePace()

    # ---- what comes in

    def begin(self) -> None:
        """It has said hello, and tells what is free."""
        self._flush()

    def hear(self, message: RouterMessage) -> None:
        """Something from the router."""
        if not self.is_alive:
            return
        match message:
            case Reserve(request=request) if self._run is not None and self._profile.hears_between_steps:
                run = self._run
                self._late.add((request.request_id, request.attempt))
                step_ends_s = run.begun_s + run.seconds(run.step_under_way(self._clock.now_s))
                self._clock.at(step_ends_s, self._hear_late, message)
                return
            case Reserve(seq=seq, request=request, source=source):
                self._last_seq = max(self._last_seq, seq)
                self._reserve(request, source)
            case Prefill(seq, request, ticket):
                self._last_seq = max(self._last_seq, seq)
                self._prefill(request, ticket)
            case Start(request_id, attempt, token_ids):
                self._start((request_id, attempt), len(token_ids))
            case Generate(seq, request):
                self._last_seq = max(self._last_seq, seq)
                self._generate(request)
            case Cancel(request_id, attempt):
                self._late.discard((request_id, attempt))
                self._drop(self._jobs.get((request_id, attempt)))
            case PeerLost(peer):
                self._peer_lost(peer)
            case Drain():
                self.is_draining = True
            case _:
                pass
        self._flush()

    def _hear_late(self, message: Reserve) -> None:
        if self.is_alive:
            self._last_seq = max(self._last_seq, message.seq)
            key = message.request.request_id, message.request.attempt
            if key in self._late:
                self._late.remove(key)
                self._reserve(message.request, message.source)
            self._flush()

    def die(self) -> None:
        """Everything here is gone; others learn of it from the router."""
        self.is_alive = False
        self._turn += 1
        self.busy_s, self._run = self.computed_s, None
        self._note_busy(False)
        for job in self._jobs.values():
            if job.transfer is not None:
                self._world.network.abort(job.transfer)
        self._jobs.clear()

    def hasten(self, slowness: float) -> None:
        """From the next step on, steps take `slowness` times as long."""
        if slowness != self.slowness:
            self.slowness = slowness
            self._interrupt()

    # ---- what can be asked

    @property
    def name(self) -> str:
        return self.hello.worker.name

    @property
    def is_busy(self) -> bool:
        return self._was_busy

    @property
    def computed_s(self) -> float:
        """How long it has computed so far."""
        return self.busy_s + (self._clock.now_s - self._run.begun_s if self._run is not None else 0.0)

    @property
    def num_jobs(self) -> int:
        return len(self._jobs)

    @property
    def _num_free_pages(self) -> int:
        """Without those that answers have grown into, which are not leased one by one."""
        return self._pages.num_free - self._batch.grown // self._page_tokens

    # ---- attempts

    def _admit(self, request: EngineRequest, state: State) -> Job | None:
        num_known = (len(request.prompt_ids) + len(request.output_ids)) // 4
        stop_at, names = self._world.facts(request.request_id)
        told = len(request.output_ids) // 4
        lease = self._lease(names, num_known)
        key = (request.request_id, request.attempt)
        if lease is None or self.is_draining:
            self._out.append(Failed(*key, "no pages" if lease is None else "draining", True))
            if lease is not None:
                self._pages.give_back(lease)
            return None
        stop_at = max(stop_at, told + 1)
        job = Job(request.request_id, request.attempt, state, num_known, told, told, stop_at, lease, names)
        job.num_cached = lease.num_known * self._page_tokens
        self._jobs[key] = job
        return job

    def _lease(self, names: PageNames | None, num_tokens: int) -> Lease[PageNames] | None:
        num_pages = -(-(num_tokens + 1) // self._page_tokens)
        if num_pages > self._num_free_pages and self._batch.grown:
            return None
        return self._pages.take(names, num_pages, (num_tokens - 1) // self._page_tokens)

    def _reserve(self, request: EngineRequest, source: PeerId) -> None:
        job = self._admit(request, State.RESERVED)
        if job is None:
            return
        job.peer = self._world.find(source)
        assert job.lease is not None
        num_missing = -(-job.num_known // self._page_tokens) - job.lease.num_known
        job.ticket = self._tickets.issue(job.lease.num_known, num_missing)
        self._out.append(Reserved(*job.key, job.num_cached, job.ticket))

    def _prefill(self, request: EngineRequest, ticket: HandoffTicket) -> None:
        job = self._admit(request, State.QUEUED)
        if job is None:
            return
        job.ticket = ticket
        job.peer = self._world.find(ticket.destination)
        self._enqueue(job)

    def _generate(self, request: EngineRequest) -> None:
        job = self._jobs.get((request.request_id, request.attempt))
        if job is None:
            job = self._admit(request, State.QUEUED)
        if job is not None:
            self._enqueue(job)

    def _enqueue(self, job: Job) -> None:
        job.state = State.QUEUED
        job.num_uncomputed = job.num_known - job.num_cached
        self._queued_tokens += job.num_uncomputed
        self._queue.append(job)
        self._interrupt()

    def _start(self, key: tuple[str, int], num_tokens: int) -> None:
        job = self._jobs.get(key)
        if job is not None and job.state is State.RESERVED and not job.has_started:
            job.has_started = True
            job.told += num_tokens
            if job.has_landed:
                self._join(job)

    def landed(self, sent: Job, seconds: float) -> None:
        """All pages of a reservation came."""
        job = self._jobs.get(sent.key)
        if job is None or job.ticket != sent.ticket or job.has_landed:
            return
        assert job.ticket is not None
        job.has_landed = True
        self._remember(job, job.num_known)
        num_bytes = job.ticket.num_pages * self._page_bytes
        self._out.append(HandedOff(*job.key, num_bytes, seconds))
        if job.has_started:
            self._join(job)
        self._flush()

    def _drop(self, job: Job | None) -> None:
        if job is None:
            return
        del self._jobs[job.key]
        if job.transfer is not None:
            self._world.network.abort(job.transfer)
            job.transfer = None
        if job.state is State.QUEUED:
            self._queued_tokens -= job.num_uncomputed
            self._queue.remove(job)
        elif job.state is State.DECODING and self._batch.drop(job):
            self._interrupt()
        self._release(job)
        job.state = State.GONE

    def _release(self, job: Job) -> None:
        if job.lease is not None:
            self._pages.give_back(job.lease)
            job.lease = None

    def _peer_lost(self, peer: PeerId) -> None:
        """What was on its way from there or to there will not arrive."""
        for job in list(self._jobs.values()):
            if job.peer is not None and job.peer.hello.worker == peer and not job.has_landed:
                self._drop(job)
                self._out.append(Failed(*job.key, f"{peer.name} is gone", True))

    # ---- steps

    def _interrupt(self) -> None:
        """Something is new: a run of decode steps ends with the step that is under way, an idle worker begins."""
        run = self._run
        if run is None:
            self._begin()
        elif run.num_steps > 1:
            boundary = run.step_under_way(self._clock.now_s)
            if boundary < run.num_steps:
                run.num_steps = boundary
                self._plan(run)

    def _plan(self, run: StepRun) -> None:
        self._turn += 1
        self._clock.at(run.end_s, self._wake, self._turn)

    def _wake(self, turn: int) -> None:
        if turn == self._turn and self.is_alive:
            self._end_run()
            self._flush()

    def _begin(self) -> None:
        """The next step, or a run of them."""
        batch, role, now_s = self._batch, self._role, self._clock.now_s
        if batch.is_changing:
            batch.regroup()
            if not batch:
                self._report_due_s = math.inf
        self._chunks, self._chunk_tokens = [], 0
        num_seqs = len(batch)
        prompt_s = pairs = 0.0
        if self._queue:
            pairs = self._fill_chunks(num_seqs)
        if not self._chunks and not num_seqs:
            self._run = None
            self._note_busy(False)
            return
        if self._chunks:
            prompt_s = role.prefill_chunk_s + role.prefill_token_s * self._chunk_tokens + role.prefill_pair_s * pairs
        first_s = max(role.decode_step_s, prompt_s)
        if num_seqs:
            first_s += role.decode_seq_s * num_seqs + role.decode_context_token_s * batch.context
        first_s = max(first_s, 1e-6)
        self._note_busy(True)
        num_steps = 1 if self._chunks else self._steps_to_event(num_seqs, first_s * self.slowness)
        if self._sample_pace.is_due(bool(self._chunks), now_s):
            self._sample(first_s * self.slowness, pairs, now_s)
        pace = self.slowness
        if self._profile.noise:
            pace *= math.exp(self._rng.gauss(0.0, self._profile.noise / math.sqrt(num_steps)))
        growth_s = role.decode_context_token_s * num_seqs * pace
        self._run = StepRun(now_s, num_steps, num_seqs, first_s * pace, growth_s)
        self._plan(self._run)

    def _steps_to_event(self, num_seqs: int, first_s: float) -> int:
        """Steps till an answer ends, pages run out or the router is to be told."""
        num_steps = self._batch.steps_to_end
        free_tokens = self._num_free_pages * self._page_tokens
        if free_tokens < num_steps * num_seqs:
            num_steps = max(min(num_steps, free_tokens // num_seqs), 1)
        if self._report_s < math.inf:
            now_s = self._clock.now_s
            if self._report_due_s == math.inf:
                self._report_due_s = now_s + self._report_s
            num_steps = max(min(num_steps, int((self._report_due_s - now_s) / first_s) + 1), 1)
        return num_steps

    def _fill_chunks(self, num_seqs: int) -> float:
        """Takes prompts into the step, in the order they came. Returns their pairs of tokens."""
        budget = self._role.max_step_tokens - num_seqs
        pairs = 0.0
        for job in self._queue:
            if budget <= 0:
                break
            if not job.has_begun and not self._begin_prompt(job):
                break
            take = min(budget, job.num_uncomputed)
            pairs += take * (job.num_known - job.num_uncomputed + 0.5 * take)
            self._chunks.append((job, take))
            self._chunk_tokens += take
            budget -= take
        return pairs

    def _begin_prompt(self, job: Job) -> bool:
        """Its first chunk: others may have computed some of it meanwhile, and its pages begin to leave. False: there
        are no pages for it."""
        if job.lease is None:
            job.lease = self._lease(job.names, job.num_known)
            if job.lease is None:
                return False
        job.has_begun = True
        if job.names is not None:
            self._pages.find_more(job.lease, (job.num_known - 1) // self._page_tokens)
            job.num_cached = job.lease.num_known * self._page_tokens
            self._queued_tokens -= job.num_uncomputed
            job.num_uncomputed = job.num_known - job.num_cached
            self._queued_tokens += job.num_uncomputed
        ticket, peer = job.ticket, job.peer
        if ticket is not None and ticket.num_pages and peer is not None and self.hello.role == "prefill":
            # Layer by layer, while the next layers are computed: the last layer of the last chunk goes last.
            last_chunk = min((job.num_uncomputed - 1) % self._role.max_step_tokens + 1, job.num_known)
            num_bytes = ticket.num_pages * self._page_bytes
            share = min(last_chunk / (ticket.num_pages * self._page_tokens), 1.0)
            job.tail_bytes = num_bytes * share / self._profile.num_layers
            world = self._world
            job.transfer = world.network.open(self.card, peer.card, num_bytes - job.tail_bytes, self._sent, job)
        return True

    def _end_run(self) -> None:
        run, now_s = self._run, self._clock.now_s
        assert run is not None
        self.busy_s += now_s - run.begun_s
        self._run = None
        chunks: list[TokenChunk] = []
        if run.num_seqs:
            for job in self._batch.advance(run.num_steps, run.num_seqs):
                chunks.append(job.say(job.stop_at, "stop"))
                self._remember(job, job.num_known)
                self._end(job)
        for job, take in self._chunks:
            if job.state is not State.QUEUED:
                continue  # it was dropped meanwhile
            job.num_uncomputed -= take
            self._queued_tokens -= take
            self._remember(job, job.num_known - job.num_uncomputed)
            if job.num_uncomputed == 0:
                self._queue.popleft()
                self._computed(job, chunks)
        self._chunks = []
        if now_s >= self._report_due_s:
            self._report(chunks)
        if chunks:
            self._out.append(StepOutput(tuple(chunks)))
        if self._num_free_pages < 0:
            self._preempt()
        self._begin()

    def _computed(self, job: Job, chunks: list[TokenChunk]) -> None:
        """The whole prompt is: its first token, and on with it."""
        is_last = job.told + 1 >= job.stop_at
        chunks.append(job.say(job.told + 1, "stop" if is_last else None))
        if self.hello.role == "prefill":
            job.state = State.SENDING
            if job.transfer is not None:
                self._world.network.finish(job.transfer, job.tail_bytes)
            else:
                self._sent(job, 0.0)
        elif is_last:
            self._end(job)
        else:
            self._join(job)

    def _sent(self, job: Job, seconds: float) -> None:
        """The last page is there. Its room here is free, the receiver may go on."""
        if not self.is_alive or job.state is State.GONE:
            return
        job.transfer = None
        self._end(job)
        if job.peer is not None and job.peer.is_alive:
            job.peer.landed(job, seconds)
        self._flush()

    def _end(self, job: Job) -> None:
        """All is done that was to be done here."""
        del self._jobs[job.key]
        self._release(job)
        job.state = State.GONE

    # ---- those that decode

    def _join(self, job: Job) -> None:
        self._batch.join(job)
        self._interrupt()

    def _report(self, chunks: list[TokenChunk]) -> None:
        """How far everybody is."""
        self._tells_all = True
        self._report_due_s = self._clock.now_s + self._report_s
        for job in self._batch:
            self._tell_progress(job, chunks)

    def _tell_progress(self, job: Job, chunks: list[TokenChunk]) -> None:
        num_output = self._batch.output_of(job)
        if num_output > job.told:
            chunks.append(job.say(num_output))

    def _preempt(self) -> None:
        """Pages have run out: who joined last gives up its own, and is computed again when there are some."""
        chunks: list[TokenChunk] = []
        while len(self._batch) > 1 and self._num_free_pages < 0:
            job = self._batch.pop_latest()
            self._tell_progress(job, chunks)
            self._release(job)
            job.num_known += job.told - job.num_given
            job.num_given = job.told
            job.num_cached, job.has_begun, job.state = 0, False, State.QUEUED
            job.ticket = None
            job.num_uncomputed = job.num_known
            self._queued_tokens += job.num_uncomputed
            self._queue.appendleft(job)
            self.num_preemptions += 1
        if chunks:
            self._out.append(StepOutput(tuple(chunks)))

    # ---- what is told

    def _remember(self, job: Job, num_tokens: int) -> None:
        if job.names is not None and job.lease is not None:
            self._pages.remember(job.lease, num_tokens // self._page_tokens)

    def _sample(self, seconds: float, pairs: float, now_s: float) -> None:
        """The times of the steps that begin."""
        has_prompts = bool(self._chunks)
        self._sample_pace.taken(has_prompts, now_s)
        mean = int(pairs / self._chunk_tokens) if has_prompts else 0
        sample = StepTime(self._chunk_tokens, mean, len(self._batch), self._batch.context, seconds)
        self._out.append(StepTimes((sample,)))

    def _flush(self) -> None:
        """Everything that is news goes to the router. Credits that have only become fewer are no news: what took them
        the router has sent, but for the growth of answers, which is told with those."""
        if not self.is_alive:
            return
        out, pages = self._out, self._pages
        free = self._capacity()
        before, self._free = self._free, free
        if free[1] > before[1] or free[2] > before[2] or free[3] > before[3] or (self._tells_all and free != before):
            self._tells_all = False
            out.append(Credits(*free))
        if pages.changes:
            stored, removed = pages.changes.take()
            self._blocks_seq += 1
            changed = BlocksChanged(self._blocks_seq, False, pack_block_ids(stored), pack_block_ids(removed))
            out.append(changed)
        if out:
            self._out = []
            self._world.tell(self, out)
        if self.is_draining and not self._jobs and not self._late:
            self._world.drained(self)

    def _capacity(self) -> tuple[int, int, int, int]:
        """The fields of `Credits`."""
        if self.is_draining:
            return self._last_seq, 0, 0, 0
        role, num_decoding = self._role, len(self._batch)
        room = min(num_decoding, 1 + self.hello.num_pages // 64)  # answers grow before the next word of it
        return (
            self._last_seq,
            max(role.max_slots - len(self._jobs), 0),
            max(self._num_free_pages - room, 0),
            max(role.max_queued_tokens - self._queued_tokens - num_decoding, 0),
        )

    def _note_busy(self, is_busy: bool) -> None:
        if is_busy != self._was_busy:
            self._was_busy = is_busy
            self._world.busy_changed(self)
