"""The steps of a simulated worker: who computes what, and when that is done.

What makes it fast is that steps which only decode are not made one by one: a run of them (`step_run.py`) is solved for
the next moment at which something happens: a sequence ends, pages run out, the router is due a report of how far
everybody is (`report_s`). What comes in between takes effect at the end of the step that is under way, as in an engine.
Steps with prompts in them are made one by one.
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

    def prompt_begins(self, attempt: SimAttempt) -> None:
        """With the step that begins the first tokens of its prompt are computed."""

    def prompt_computed(self, attempt: SimAttempt, chunks: list[TokenChunk]) -> None:
        """Its whole prompt is computed."""

    def answer_ended(self, attempt: SimAttempt) -> None:
        """Its last token has been reported."""

    def stopped(self, attempts: list[SimAttempt]) -> None:
        """They were asked to stand still and do, out of the batch."""

    def step_sampled(self, sample: StepTime) -> None:
        """The times of a step that begins."""

    def steps_ended(self, chunks: list[TokenChunk]) -> None:
        """One or more of them: time to tell."""

    def busy_changed(self) -> None:
        """It has begun to compute, or has nothing to do any more."""


class SimEngine:
    """Times are those of `role`, `noise` their relative deviation. `tells_each_step`: decoding attempts report with
    each step, as real workers do; else every `report_s`."""

    def __init__(
        self,
        clock: VirtualClock,
        role: WorkerRoleProfile,
        noise: float,
        allocator: PageAllocator,
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
        self._allocator = allocator
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

    def compute(self, attempt: SimAttempt) -> None:
        """Its prompt, but for what is cached, and then it says a token."""
        self.prompts.add(attempt, attempt.num_cached)
        self._interrupt()

    def decode(self, attempt: SimAttempt) -> None:
        self.batch.join(attempt)
        if attempt.is_adopted:
            self._newcomers.append(attempt)
        self._interrupt()

    def drop(self, attempt: SimAttempt) -> None:
        """It is not wanted any more."""
        if attempt.state is AttemptState.QUEUED:
            self.prompts.drop(attempt)
        elif attempt.state is AttemptState.DECODING and self.batch.drop(attempt):
            self._interrupt()

    def stop_at_step_end(self, attempt: SimAttempt) -> None:
        """It decodes, and stands still from the end of the step that is under way."""
        self._stopping.append(attempt)
        self._interrupt()

    def go_on(self, attempt: SimAttempt) -> None:
        """It need not stand still after all."""
        if attempt in self._stopping:
            self._stopping.remove(attempt)

    def pages_changed(self) -> None:
        """There may be more or fewer pages than before."""
        self.has_told_all = True  # fewer credits are news, too
        self._interrupt()

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
        """Slows its steps, because others compute on its cores."""
        self._sharing_slowness = factor
        self._set_slowness(factor * self._fault_slowness)

    def end(self) -> None:
        """The worker is no more."""
        self._turn += 1
        self._busy_s, self._run = self.computed_s, None
        if self.is_busy:
            self._set_busy(False)

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
        """The tokens of all decoding attempts that have not been reported, up to now."""
        run = self._run
        num_steps = run.steps_within(self._clock.now_s - run.begun_s) if run is not None and run.num_seqs else 0
        num_steps = min(num_steps, run.num_steps - 1) if run is not None else 0
        chunks: list[TokenChunk] = []
        for attempt in self.batch:
            self._tell(attempt, chunks, self.batch.output_of(attempt) + max(num_steps, 0))
        return chunks

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
        """Steps until an answer ends, pages run out or a report to the router is due."""
        if self.tells_each_step or self._newcomers:
            self._report_due_s = self._clock.now_s
            self._newcomers.clear()
            return 1
        num_steps = self.batch.steps_to_end
        free_tokens = self._allocator.num_free * self._allocator.page_tokens
        if free_tokens < num_steps * num_seqs and not self._allocator.reserves_output:
            num_steps = max(min(num_steps, free_tokens // num_seqs), 1)
        if self._report_s < math.inf:
            now_s = self._clock.now_s
            if self._report_due_s == math.inf:
                self._report_due_s = now_s + self._report_s
            num_steps = max(min(num_steps, int((self._report_due_s - now_s) / max(first_s, SHORTEST_STEP_S)) + 1), 1)
        return num_steps

    def _begin_prompt(self, attempt: SimAttempt) -> bool:
        """Its first chunk: others may have computed some of it meanwhile. False: there are no pages for it."""
        allocator = self._allocator
        if attempt.lease is None:
            attempt.lease = allocator.lease(attempt.names, attempt.num_known)
            if attempt.lease is None:
                return False
        attempt.has_begun = True
        if attempt.names is not None:
            attempt.num_cached = allocator.find_more(attempt)
            self.prompts.found(attempt, attempt.num_cached)
        self._owner.prompt_begins(attempt)
        return True

    def _end_run(self, run: StepRun) -> list[TokenChunk]:
        """Counts its steps and begins the next ones. Until then the old ones stand, so that nothing that happens here
        begins a step of its own."""
        now_s, owner, allocator = self._clock.now_s, self._owner, self._allocator
        self._busy_s += now_s - run.begun_s
        num_steps, run.num_steps, run.begun_s = run.num_steps, 1, now_s
        chunks: list[TokenChunk] = []
        if run.num_seqs:
            for attempt in self.batch.advance(num_steps, run.num_seqs):
                chunks.append(attempt.say(attempt.stop_at, "stop"))
                allocator.remember(attempt, attempt.num_known)
                owner.answer_ended(attempt)
        if self.prompts.chunks:
            for attempt in self.prompts.advance():
                allocator.remember(attempt, attempt.num_known - attempt.num_uncomputed)
                if attempt.num_uncomputed == 0:
                    owner.prompt_computed(attempt, chunks)
        if now_s >= self._report_due_s:
            self._report(chunks)
        if allocator.num_free < 0 and not allocator.reserves_output:  # else only the limit is lower
            self._preempt(chunks)
        if self._stopping:
            self._stop(chunks)
        self._begin()
        return chunks

    def _report(self, chunks: list[TokenChunk]) -> None:
        """How far everybody is."""
        self.has_told_all = True
        self._report_due_s = self._clock.now_s + self._report_s
        for attempt in self.batch:
            self._tell(attempt, chunks, self.batch.output_of(attempt))

    def _tell(self, attempt: SimAttempt, chunks: list[TokenChunk], num_output: int) -> None:
        if num_output > attempt.num_reported:
            chunks.append(attempt.say(num_output))

    def _preempt(self, chunks: list[TokenChunk]) -> None:
        """Pages have run out: who joined last gives up its own, and is computed again when there are some."""
        while len(self.batch) > 1 and self._allocator.num_free < 0:
            attempt = self.batch.pop_latest()
            self._tell(attempt, chunks, self.batch.output_of(attempt))
            self._allocator.release(attempt)
            attempt.take_stock()
            attempt.num_cached, attempt.has_begun = 0, False
            attempt.ticket = None
            self.prompts.add(attempt, 0, is_first=True)
            self.num_preemptions += 1

    def _stop(self, chunks: list[TokenChunk]) -> None:
        """Takes those that were asked to stand still out of the batch."""
        stopping, self._stopping = [attempt for attempt in self._stopping if attempt.state is AttemptState.DECODING], []
        for attempt in stopping:
            if self.batch.take(attempt):
                self._tell(attempt, chunks, self.batch.output_of(attempt))
            attempt.state = AttemptState.STOPPED
        self._owner.stopped(stopping)

    def _set_busy(self, is_busy: bool) -> None:
        self.is_busy = is_busy
        self._owner.busy_changed()
