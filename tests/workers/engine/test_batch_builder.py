"""The arrays that live from step to step are those that a step would be given from nothing."""

from __future__ import annotations

import random
from array import array

import numpy as np

from slipstream.router.protocol.messages import SamplingParams
from slipstream.workers.engine.batch_builder import BatchBuilder
from slipstream.workers.engine.plan.step_plan import is_greedy
from slipstream.workers.engine.scheduling.scheduled_step import ScheduledStep
from slipstream.workers.engine.scheduling.scheduler import Scheduler
from slipstream.workers.engine.scheduling.sequence import Sequence
from slipstream.workers.models.interface.step_arrays import SequenceSlice, StepArrays
from tests.support.workers.engine_driver import make_limits

LIMITS = make_limits(num_pages=30, max_model_len=60, max_num_seqs=6, max_step_tokens=20)


def new_sequence(arrival: int, num_prompt: int, **params: object) -> Sequence:
    sampling = SamplingParams(**{"max_tokens": 50, "temperature": 0.0, **params})  # type: ignore[arg-type]
    return Sequence(
        key=(f"s{arrival}", 0),
        arrival=arrival,
        priority=arrival % 2,
        params=sampling,
        tokens=array("i", range(100 * arrival, 100 * arrival + num_prompt)),
        num_prompt=num_prompt,
        stop_ids=frozenset({7}),
        chain=None,
        counts=None,
        max_model_len=LIMITS.max_model_len,
        is_greedy=is_greedy(sampling),
    )


def from_nothing(step: ScheduledStep) -> StepArrays:
    slices = [(s, 1, True) for s in step.decoding] + [(c.sequence, c.num_tokens, c.samples) for c in step.chunks]
    return StepArrays.build(
        [
            SequenceSlice(
                s.num_computed,
                tuple(s.tokens[s.num_computed : s.num_computed + num]),
                s.pages[: LIMITS.pages_for(s.num_computed + num)].tobytes(),
                samples,
            )
            for s, num, samples in slices
        ],
        LIMITS.page_tokens,
    )


def assert_same(arrays: StepArrays, expected: StepArrays) -> None:
    for name in ("token_ids", "positions", "slots", "query_starts", "kv_lens", "sample_rows"):
        values = getattr(arrays, name)
        assert values.dtype == np.int32
        assert values.tolist() == getattr(expected, name).tolist(), name
    for row, kv_len in enumerate(expected.kv_lens.tolist()):
        num_pages = LIMITS.pages_for(kv_len)
        assert arrays.page_table[row, :num_pages].tolist() == expected.page_table[row, :num_pages].tolist()


def test_steps_of_a_changing_batch_are_laid_out_as_from_nothing() -> None:
    rng = random.Random(0)
    scheduler, batch_builder = Scheduler(LIMITS), BatchBuilder(LIMITS)
    num_decode_steps = 0
    for arrival in range(40):
        scheduler.add(new_sequence(arrival, rng.randint(1, 40)))
        for _ in range(rng.randint(1, 12)):
            step = scheduler.schedule()
            if not step:
                break
            plan, _ = batch_builder.build(step)
            assert_same(plan.arrays, from_nothing(step))
            assert_same(plan.arrays.pack().unpack(), from_nothing(step))
            scheduler.computed(step)
            num_decode_steps += not step.chunks
            for sequence in [*step.decoding, *(c.sequence for c in step.chunks if c.samples)]:
                sequence.append(rng.randrange(1000))
                if sequence.num_tokens == LIMITS.max_model_len or rng.random() < 0.05:
                    scheduler.finish(sequence)
    assert scheduler.num_preemptions > 0
    assert num_decode_steps > 50


def test_a_step_is_greedy_as_long_as_every_row_takes_the_best_token_unmasked() -> None:
    scheduler, batch_builder = Scheduler(LIMITS), BatchBuilder(LIMITS)
    first = new_sequence(0, 3, min_tokens=2)
    scheduler.add(first)
    greedy, masked = [], []
    for at in range(5):
        if at == 3:
            scheduler.add(new_sequence(1, 3, temperature=1.0))
        step = scheduler.schedule()
        plan, rows = batch_builder.build(step)
        greedy.append(plan.greedy)
        masked.append([row.masked_ids for row in rows])
        scheduler.computed(step)
        for sequence in [*step.decoding, *(c.sequence for c in step.chunks)]:
            sequence.append(5)
    assert greedy == [False, False, True, False, False]
    assert masked == [[(7,)], [(7,)], [], [(), ()], [(), ()]]
