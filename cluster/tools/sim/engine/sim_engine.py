"""The steps of a simulated worker: who computes what, and when that is done.

What makes it fast is that steps which only decode are not made one by one: a run of them (`step_run.py`) is solved for
the next moment at which something happens: a sequence ends, pages run out, the router is to be told how far everybody
is (`report_s`). What comes in between takes effect at the end of the step that is under way, as in an engine. Steps
with prompts in them are made one by one.
"""

from __future__ import annotations

import math
import random
from typing import Protocol

from slipstream.cluster.tools.sim.engine.decode_batch import DecodeBatch
from slipstream.cluster.tools.sim.engine.page_allocator import PageAllocator
from slipstream.cluster.tools.sim.engine.prompt_queue import PromptQueue
from slipstream.cluster.tools.sim.engine.sim_attempt import AttemptState, SimAttempt
from slipstream.cluster.tools.sim.engine.step_run import StepRun
from slipstream.cluster.tools.sim.engine.step_sampling import SamplePace
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerRoleProfile
from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock
from slipstream.router.protocol.messages import StepTime, TokenChunk

SHORTEST_STEP_S = 1e-6


class EngineOwner(Protocol):
    """Who has the engine: the worker. Chunks are those that the end of the step tells."""

    def prompt_begins(self, job: SimAttempt) -> None:
        """With the step that begins the first tokens of its prompt are computed."""

    def prompt_computed(self, job: SimAttempt, chunks: list[TokenChunk]) -> None:
        """Its whole prompt is computed."""

    def answer_ended(self, job: SimAttempt) -> None:
        """Its last token has been told."""

    def stopped(self, jobs: list[SimAttempt]) -> None:
        """They were asked to stand still and do, out of the batch."""

    def step_sampled(self, sample: StepTime) -> None:
        """The times of a step that begins."""

    def steps_ended(self, chunks: list[TokenChunk]) -> None:
        """One or more of them: time to tell."""

    def busy_changed(self) -> None:
        """It has begun to compute, or has nothing to do any more."""


class SimEngine:
    """Times are those of `role`, `noise` their relative deviation. `tells_each_step`: whoever decodes says so with each
    step, as real workers do; else every `report_s`."""

    def __init__(
        self,
        clock: VirtualClock,
        role: WorkerRoleProfile,
        noise: float,
        room: PageAllocator,
        batch: DecodeBatch,
        report_s: float,
        rng: random.Random,
        owner: EngineOwner,
    ) -> None:
        self.prompts = PromptQueue()
        self.batch = batch
        self.is_busy = False
        self.tells_each_step = False
        self.has_told_all = False  # of the batch, since this was last looked at
        self.num_preemptions = 0
        self._clock = clock
        self._role = role
        self._noise = noise
        self._room = room
        self._report_s = report_s
        self._report_due_s = math.inf
        self._rng = rng
        self._owner = owner
        self._slowness = self._fault_slowness = self._sharing_slowness = 1.0
        self._busy_s = 0.0
        self._run: StepRun | None = None  # the steps that are under way
        self._turn = 0  # of the end that is planned for them: a later one replaces it
        self._stopping: list[SimAttempt] = []
        self._newcomers: list[SimAttempt] = []  # that have moved here: their clients wait for the first token from here
        self._sample_pace = SamplePace()

    # ---- what comes in

    def compute(self, job: SimAttempt) -> None:
        """Its prompt, but for what is cached, and then it says a token."""
        self.prompts.add(job, job.num_cached)
        self._interrupt()

    def decode(self, job: SimAttempt) -> None:
        self.batch.join(job)
        if job.is_adopted:
            self._newcomers.append(job)
        self._interrupt()

    def drop(self, job: SimAttempt) -> None:
        """Nobody wants it any more."""
        if job.state is AttemptState.QUEUED:
            self.prompts.drop(job)
        elif job.state is AttemptState.DECODING and self.batch.drop(job):
            self._interrupt()

    def stop_at_step_end(self, job: SimAttempt) -> None:
        """It decodes, and stands still from the end of the step that is under way."""
        self._stopping.append(job)
        self._interrupt()

    def go_on(self, job: SimAttempt) -> None:
        """It need not stand still after all."""
        if job in self._stopping:
            self._stopping.remove(job)

    def tell_each_step(self) -> None:
        """From the step under way on."""
        self.tells_each_step = True
        self._interrupt()

    def slow_down(self, factor: float) -> None:
        """What is left of the step under way and all later ones take `factor` times as long, 1 again as long as before:
        its machine is not what it was. Beside `share_cores`: both may be at once."""
        self._fault_slowness = factor
        self._set_slowness(factor * self._sharing_slowness)

    def share_cores(self, factor: float) -> None:
        """The same, because others compute on its cores."""
        self._sharing_slowness = factor
        self._set_slowness(factor * self._fault_slowness)

    def end(self) -> None:
        """The worker is no more."""
        self._turn += 1
        self._busy_s, self._run = self.computed_s, None
        if self.is_busy:
            self._set_busy(False)

    # ---- what can be asked

    @property
    def computed_s(self) -> float:
        """How long it has computed so far."""
        return self._busy_s + (self._clock.now_s - self._run.begun_s if self._run is not None else 0.0)

    @property
    def step_end_s(self) -> float | None:
        """When the step that is under way ends. None: there is none."""
        run = self._run
        return None if run is None else run.end_of(run.step_under_way(self._clock.now_s))

    def progress(self) -> list[TokenChunk]:
        """What all that decode have said that has not been told, up to now."""
        run = self._run
        num_steps = run.steps_within(self._clock.now_s - run.begun_s) if run is not None and run.num_seqs else 0
        num_steps = min(num_steps, run.num_steps - 1) if run is not None else 0
        chunks: list[TokenChunk] = []
        for job in self.batch:
            self._tell(job, chunks, self.batch.output_of(job) + max(num_steps, 0))
        return chunks

    # ---- inside

    def _set_slowness(self, slowness: float) -> None:
        if slowness == self._slowness:
            return
        run, before = self._run, self._slowness
        self._slowness = slowness
        if run is not None:
            now_s = self._clock.now_s
            run.num_steps = run.step_under_way(now_s)
            run.late_s += max(run.end_s - now_s, 0.0) * (slowness / before - 1.0)
            self._plan(run)

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
        if turn == self._turn and self._run is not None:
            self._owner.steps_ended(self._end_run(self._run))

    def _begin(self) -> None:
        """The next step, or a run of them."""
        batch, prompts, role, now_s = self.batch, self.prompts, self._role, self._clock.now_s
        if batch.is_changing:
            batch.regroup()
            if not batch:
                self._report_due_s = math.inf
        num_seqs = len(batch)
        pairs = prompts.fill(role.max_step_tokens - num_seqs, self._begin_prompt) if prompts else 0.0
        chunk_tokens = prompts.chunk_tokens if prompts.chunks else 0
        if not chunk_tokens and not num_seqs:
            self._run = None
            if self.is_busy:
                self._set_busy(False)
            return
        first_s = role.step_s(num_seqs, batch.context, chunk_tokens, pairs)
        if not self.is_busy:
            self._set_busy(True)
        num_steps = 1 if chunk_tokens else self._steps_to_event(num_seqs, first_s * self._slowness)
        if self._sample_pace.is_due(chunk_tokens > 0, now_s):
            self._sample_pace.taken(chunk_tokens > 0, now_s)
            mean = int(pairs / chunk_tokens) if chunk_tokens else 0
            sample = StepTime(chunk_tokens, mean, num_seqs, batch.context, first_s * self._slowness)
            self._owner.step_sampled(sample)
        pace = self._slowness
        if self._noise:
            pace *= math.exp(self._rng.gauss(0.0, self._noise / math.sqrt(num_steps)))
        growth_s = role.decode_context_token_s * num_seqs * pace
        self._run = StepRun(now_s, num_steps, num_seqs, max(first_s, SHORTEST_STEP_S) * pace, growth_s)
        self._plan(self._run)

    def _steps_to_event(self, num_seqs: int, first_s: float) -> int:
        """Steps until an answer ends, pages run out or the router is to be told."""
        if self.tells_each_step or self._newcomers:
            self._report_due_s = self._clock.now_s
            self._newcomers.clear()
            return 1
        num_steps = self.batch.steps_to_end
        free_tokens = self._room.num_free * self._room.page_tokens
        if free_tokens < num_steps * num_seqs:
            num_steps = max(min(num_steps, free_tokens // num_seqs), 1)
        if self._report_s < math.inf:
            now_s = self._clock.now_s
            if self._report_due_s == math.inf:
                self._report_due_s = now_s + self._report_s
            num_steps = max(min(num_steps, int((self._report_due_s - now_s) / max(first_s, SHORTEST_STEP_S)) + 1), 1)
        return num_steps

    def _begin_prompt(self, job: SimAttempt) -> bool:
        """Its first chunk: others may have computed some of it meanwhile. False: there are no pages for it."""
        room = self._room
        if job.lease is None:
            job.lease = room.lease(job.names, job.num_known)
            if job.lease is None:
                return False
        job.has_begun = True
        if job.names is not None:
            job.num_cached = room.find_more(job)
            self.prompts.found(job, job.num_cached)
        self._owner.prompt_begins(job)
        return True

    def _end_run(self, run: StepRun) -> list[TokenChunk]:
        """Counts its steps and begins the next ones. Until then the old ones stand, so that nothing that happens here
        begins a step of its own."""
        now_s, owner, room = self._clock.now_s, self._owner, self._room
        self._busy_s += now_s - run.begun_s
        num_steps, run.num_steps, run.begun_s = run.num_steps, 1, now_s
        chunks: list[TokenChunk] = []
        if run.num_seqs:
            for job in self.batch.advance(num_steps, run.num_seqs):
                chunks.append(job.say(job.stop_at, "stop"))
                room.remember(job, job.num_known)
                owner.answer_ended(job)
        if self.prompts.chunks:
            for job in self.prompts.advance():
                room.remember(job, job.num_known - job.num_uncomputed)
                if job.num_uncomputed == 0:
                    owner.prompt_computed(job, chunks)
        if now_s >= self._report_due_s:
            self._report(chunks)
        if room.num_free < 0:
            self._preempt(chunks)
        if self._stopping:
            self._stop(chunks)
        self._begin()
        return chunks

    # ---- those that decode

    def _report(self, chunks: list[TokenChunk]) -> None:
        """How far everybody is."""
        self.has_told_all = True
        self._report_due_s = self._clock.now_s + self._report_s
        for job in self.batch:
            self._tell(job, chunks, self.batch.output_of(job))

    def _tell(self, job: SimAttempt, chunks: list[TokenChunk], num_output: int) -> None:
        if num_output > job.told:
            chunks.append(job.say(num_output))

    def _preempt(self, chunks: list[TokenChunk]) -> None:
        """Pages have run out: who joined last gives up its own, and is computed again when there are some."""
        while len(self.batch) > 1 and self._room.num_free < 0:
            job = self.batch.pop_latest()
            self._tell(job, chunks, self.batch.output_of(job))
            self._room.release(job)
            job.take_stock()
            job.num_cached, job.has_begun = 0, False
            job.ticket = None
            self.prompts.add(job, 0, is_first=True)
            self.num_preemptions += 1

    def _stop(self, chunks: list[TokenChunk]) -> None:
        """Takes those that were asked to stand still out of the batch."""
        stopping, self._stopping = [job for job in self._stopping if job.state is AttemptState.DECODING], []
        for job in stopping:
            if self.batch.take(job):
                self._tell(job, chunks, self.batch.output_of(job))
            job.state = AttemptState.STOPPED
        self._owner.stopped(stopping)

    def _set_busy(self, is_busy: bool) -> None:
        self.is_busy = is_busy
        self._owner.busy_changed()
