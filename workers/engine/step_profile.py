"""Times a few steps of a new engine, so that the router knows from the first request on what a long prompt would take.

What requests tell is not enough for that: from prompts of 32 tokens nobody can say what 4,000 take. No step here costs
much, as nothing that comes before a step's tokens is computed: a long context is whatever lies in the pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slipstream.router.messages import StepTime
from slipstream.workers.engine.executor import Executor
from slipstream.workers.engine.limits import EngineLimits
from slipstream.workers.engine.plan import StepPlan
from slipstream.workers.engine.step_arrays import SequenceSlice, StepArrays

SHORT_TOKENS = 32
LONG_CONTEXT_TOKENS = 4096
MANY_SEQS = 16
CHUNK_S = 0.2  # about what the largest chunk may take
REPEAT_BELOW_S = 0.1  # a first run may find cold caches, or a machine on which other workers start, too


def profile_steps(
    limits: EngineLimits, executor: Executor, clock: Callable[[], float] = time.perf_counter
) -> tuple[StepTime, ...]:
    """At most six steps: of prompts and of sequences that decode, a few tokens, many, and a few with a long context.
    `clock` gives seconds. Overwrites pages, so it has to come before the first request."""
    profiler = _Profiler(limits, executor, clock)
    max_tokens = min(limits.max_step_tokens, limits.max_model_len)
    few = min(SHORT_TOKENS, max_tokens)
    num_seqs = min(MANY_SEQS, limits.max_num_seqs, limits.max_step_tokens, limits.num_pages // limits.pages_for(few))
    long_context = min(LONG_CONTEXT_TOKENS, limits.max_model_len) - few
    short = profiler.chunk(few)
    samples = [short, profiler.decoding(1, few - 1)]
    many = min(max_tokens, int(few * CHUNK_S / max(short.seconds, 1e-6)))
    if many > few:
        samples.append(profiler.chunk(many))
    if num_seqs > 1:
        samples.append(profiler.decoding(num_seqs, few - 1))
    if long_context > few:
        samples += profiler.chunk(few, long_context), profiler.decoding(1, long_context)
    return tuple(samples)


@dataclass(frozen=True, slots=True)
class _Profiler:
    limits: EngineLimits
    executor: Executor
    clock: Callable[[], float]

    def chunk(self, num_tokens: int, context_tokens: int = 0) -> StepTime:
        """Of a prompt, after `context_tokens` others."""
        seconds = self._seconds(1, num_tokens, context_tokens)
        return StepTime(num_tokens, context_tokens + num_tokens // 2, 0, 0, seconds)

    def decoding(self, num_seqs: int, context_tokens: int) -> StepTime:
        """A token for each of some sequences, after `context_tokens` others in each."""
        seconds = self._seconds(num_seqs, 1, context_tokens)
        return StepTime(0, 0, num_seqs, num_seqs * (context_tokens + 1), seconds)

    def _seconds(self, num_seqs: int, num_tokens: int, context_tokens: int) -> float:
        limits = self.limits
        num_pages = limits.pages_for(context_tokens + num_tokens)
        token_ids = tuple(place % limits.vocab_size for place in range(num_tokens))
        pages = np.arange(num_seqs * num_pages, dtype=np.int32).reshape(num_seqs, num_pages)
        slices = [SequenceSlice(context_tokens, token_ids, own.tobytes(), samples=True) for own in pages]
        plan = StepPlan(StepArrays.build(slices, limits.page_tokens), greedy=True)
        first = self._run(plan)
        return min(first, self._run(plan)) if first < REPEAT_BELOW_S else first

    def _run(self, plan: StepPlan) -> float:
        began_s = self.clock()
        self.executor.execute(plan, ())
        return self.clock() - began_s
