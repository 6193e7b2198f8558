from __future__ import annotations

import random

import pytest

from slipstream.cluster.tools.sim.engine.decode_batch import DecodeBatch
from slipstream.cluster.tools.sim.engine.page_allocator import PageAllocator
from slipstream.cluster.tools.sim.engine.sim_attempt import AttemptState, SimAttempt
from slipstream.cluster.tools.sim.engine.sim_engine import SimEngine
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerRoleProfile
from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock
from slipstream.router.protocol.messages import StepTime, TokenChunk

STEP_S = 0.2  # longer than the time between two samples at the beginning: each step is told of
ROLE = WorkerRoleProfile(STEP_S, 0.0, 0.0, STEP_S, 0.0, 0.0, 64, 512, 65_536)


class Worker:
    """Goes on with whoever has been computed, as a decode worker does, and keeps what the engine says."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        batch = DecodeBatch()
        self.room = PageAllocator(1000, 16, batch)
        self.engine = SimEngine(self.clock, ROLE, 0.0, self.room, batch, 10.0, random.Random(0), self)
        self.samples: list[StepTime] = []
        self.ended_s: list[float] = []
        self.num_ended = 0

    def job(self, name: str, num_tokens: int, stop_at: int) -> SimAttempt:
        lease = self.room.lease(None, num_tokens)
        return SimAttempt(name, 0, AttemptState.QUEUED, num_tokens, 0, 0, stop_at, lease, None)

    def prompt_begins(self, job: SimAttempt) -> None:
        pass

    def prompt_computed(self, job: SimAttempt, chunks: list[TokenChunk]) -> None:
        chunks.append(job.say(1))
        self.engine.decode(job)

    def answer_ended(self, job: SimAttempt) -> None:
        job.state = AttemptState.GONE
        self.room.release(job)
        self.num_ended += 1

    def stopped(self, jobs: list[SimAttempt]) -> None:
        for job in jobs:
            job.state = AttemptState.FROZEN

    def step_sampled(self, sample: StepTime) -> None:
        self.samples.append(sample)

    def steps_ended(self, chunks: list[TokenChunk]) -> None:
        self.ended_s.append(self.clock.now_s)

    def busy_changed(self) -> None:
        pass

    def run(self) -> None:
        while len(self.clock):
            self.clock.step()


def test_the_end_of_a_step_begins_one_step() -> None:
    """Also where somebody goes on to decode in the middle of it, with the prompts of others waiting."""
    worker = Worker()
    for number in range(4):
        worker.engine.compute(worker.job(f"r{number}", 300, stop_at=2 + number))
    worker.run()
    assert worker.num_ended == 4
    assert [sample.num_prefill_tokens for sample in worker.samples[:4]] == [300, 511, 389, 0]
    assert sum(sample.num_prefill_tokens for sample in worker.samples) == 4 * 300
    assert worker.room.num_used == 0


def test_what_slows_a_step_down_in_its_middle_makes_the_rest_of_it_longer() -> None:
    worker = Worker()
    worker.engine.compute(worker.job("r", 100, stop_at=2))
    worker.clock.at(0.1, lambda _: worker.engine.slow_down(3.0))
    worker.run()
    assert worker.ended_s == pytest.approx([0.1 + 3 * 0.1, 0.4 + 3 * STEP_S])


def test_a_run_of_steps_is_slowed_down_from_where_it_is() -> None:
    worker = Worker()
    worker.engine.compute(worker.job("r", 100, stop_at=11))
    worker.clock.at(STEP_S + 4.5 * STEP_S, lambda _: worker.engine.share_cores(2.0))
    worker.run()
    assert worker.ended_s[-1] == pytest.approx(STEP_S + 4.5 * STEP_S + 2 * 5.5 * STEP_S)


def test_a_slow_machine_whose_cores_are_shared_is_slow_for_both_reasons_and_either_may_end_first() -> None:
    worker = Worker()
    worker.engine.compute(worker.job("r", 100, stop_at=5))  # a prompt and four steps
    worker.clock.at(0.0, lambda _: worker.engine.slow_down(4.0))
    worker.clock.at(4 * STEP_S, lambda _: worker.engine.share_cores(2.0))
    worker.clock.at(12 * STEP_S, lambda _: worker.engine.share_cores(1.0))
    worker.clock.at(16 * STEP_S, lambda _: worker.engine.share_cores(2.0))
    worker.clock.at(24 * STEP_S, lambda _: worker.engine.slow_down(1.0))
    worker.run()
    assert worker.ended_s[0] == pytest.approx(4 * STEP_S)
    assert worker.ended_s[-1] == pytest.approx((4 + 8 + 4 + 8 + 2) * STEP_S)


def test_who_is_to_stand_still_does_so_at_the_end_of_the_step_and_all_of_it_is_told() -> None:
    worker = Worker()
    job = worker.job("r", 100, stop_at=50)
    worker.engine.compute(job)
    worker.clock.at(4.5 * STEP_S, lambda _: worker.engine.stop_at_step_end(job))
    worker.run()
    assert (job.state, job.told) == (AttemptState.FROZEN, 5)
    assert worker.ended_s[-1] == pytest.approx(5 * STEP_S)
