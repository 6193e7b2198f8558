"""Runs the steps of a worker's profile on an engine's executor."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from slipstream.router.protocol.messages import StepTime
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.plan.executor import Executor
from slipstream.workers.engine.plan.step_plan import StepPlan
from slipstream.workers.models.interface.step_arrays import SequenceSlice, StepArrays
from slipstream.workers.telemetry.step_profile import step_profile

PROFILE_S = 1.0  # after so long no further step begins
NUM_RUNS = 2  # of a step, of which the fastest counts: the first may have to compile a kernel


def time_steps(
    limits: EngineLimits, executor: Executor, clock: Callable[[], float] = time.perf_counter
) -> tuple[StepTime, ...]:
    """How long some steps take (see `step_profile`). Overwrites pages, so it has to come before the first request.
    `clock` gives seconds."""

    def run(plan: StepPlan) -> float:
        began_s = clock()
        executor.execute(plan, ())
        return clock() - began_s

    def seconds(num_seqs: int, num_tokens: int, context_tokens: int) -> float:
        num_blocks = limits.blocks_for(context_tokens + num_tokens)
        # Page groups may share pages here, and windows be longer than the pool: what pages hold does not matter.
        pages = np.arange(num_seqs * num_blocks, dtype=np.int32).reshape(num_seqs, num_blocks) % limits.num_pages
        num_more, states = len(limits.windows) - 1, np.arange(limits.state_pages, dtype=np.int32).tobytes()
        token_ids = tuple(place % limits.vocab_size for place in range(num_tokens))
        slices = [
            SequenceSlice(context_tokens, token_ids, own.tobytes(), True, (own.tobytes(),) * num_more, states)
            for own in pages
        ]
        plan = StepPlan(StepArrays.build(slices, limits.page_tokens), greedy=True)
        return min([run(plan) for _ in range(NUM_RUNS)])

    ends_s = clock() + PROFILE_S
    samples = []
    for sample in step_profile(limits, seconds):
        samples.append(sample)
        if clock() >= ends_s:
            break
    return tuple(samples)
