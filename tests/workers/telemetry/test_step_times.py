"""What a worker tells of its steps."""

import random
from array import array
from collections.abc import Iterator

import pytest

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.protocol.messages import EngineRequest, Generate, SamplingParams, StepTime, StepTimes, pack_ids
from slipstream.router.registry.service_times import ServiceTimes
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_worker import MockWorker
from slipstream.workers.telemetry.step_times import SAMPLE_EVERY_S, TELL_EVERY_S, StepSampler
from slipstream.workers.transfers.ticket_issuer import TicketIssuer

DECODE = StepTime(0, 0, 3, 300, 0.01)
PREFILL = StepTime(64, 32, 0, 0, 0.02)


def test_of_each_kind_one_step_in_an_interval_is_wanted():
    sampler = StepSampler()
    assert sampler.wants(False, 0.0)
    sampler.add(DECODE, 0.0)
    assert not sampler.wants(False, SAMPLE_EVERY_S / 2)
    assert sampler.wants(True, SAMPLE_EVERY_S / 2), "prompts are another kind"
    assert sampler.wants(False, SAMPLE_EVERY_S)


def test_the_first_sample_is_told_at_once_and_later_ones_together():
    sampler = StepSampler()
    assert sampler.due(0.0, False) is None
    sampler.add(DECODE, 0.0)
    assert sampler.due(0.0, False).samples == (DECODE,)
    sampler.add(DECODE, 0.1)
    sampler.add(PREFILL, 0.1)
    assert sampler.due(0.1, False) is None
    assert sampler.due(TELL_EVERY_S, False).samples == (DECODE, PREFILL)


def test_an_idle_worker_keeps_nothing_back():
    sampler = StepSampler()
    sampler.add(DECODE, 0.0)
    sampler.due(0.0, False)
    sampler.add(PREFILL, 0.01)
    assert sampler.due(0.02, True).samples == (PREFILL,)


def test_a_busy_second_is_told_in_a_bounded_number_of_samples():
    sampler, told = StepSampler(), 0
    for at in range(1000):
        now_s, has_prefill = at / 1000, at % 2 == 0
        if sampler.wants(has_prefill, now_s):
            sampler.add(PREFILL if has_prefill else DECODE, now_s)
        message = sampler.due(now_s, False)
        told += len(message.samples) if message is not None else 0
    assert 10 <= told <= 2 / SAMPLE_EVERY_S


def test_steps_that_only_decode_are_told_as_one_sum():
    sampler = StepSampler()
    for num_decoding, seconds in ((2, 0.0), (4, 0.01), (3, 0.02)):
        sampler.ended(False, num_decoding, seconds)
    sampler.ended(True, 5, 7.0)
    sampler.add(StepTime(0, 0, 3, 300, 0.02), 0.1)
    (told,) = sampler.due(0.1, False).samples
    assert (told.num_steps, told.num_decoding, told.decode_context_tokens) == (3, 9, 900)
    assert told.seconds == pytest.approx(0.03)
    sampler.ended(False, 3, 0.005)
    sampler.add(StepTime(0, 0, 3, 303, 0.005), 0.2)
    assert sampler.due(0.5, False).samples == (StepTime(0, 0, 3, 303, 0.005, 1),), "each step is told once"


def test_every_connection_hears_of_the_steps_that_were_timed_before_the_first_request():
    sampler = StepSampler((PREFILL, DECODE))
    for _ in range(2):
        sampler.start_over()
        sampler.add(DECODE, 0.0)
        assert sampler.due(0.0, False).samples == (PREFILL, DECODE, DECODE)
        assert sampler.due(1.0, True) is None, "once is enough"


def test_a_new_connection_hears_nothing_of_the_time_before():
    sampler = StepSampler()
    sampler.ended(False, 8, 5.0)
    sampler.start_over()
    sampler.ended(False, 3, 0.01)
    sampler.add(DECODE, 0.0)
    assert sampler.due(0.0, False).samples == (DECODE,)


def steps_in_a_slice(
    quota: float, step_s: float, by_seq_s: float, outside_s: float, max_seqs: int, count: int, seed: int
) -> Iterator[tuple[int, float]]:
    """Sequences, and when the step ended: of a process that has `quota` of a processor in periods of 10 ms. Times are
    those of a whole processor; `outside_s` goes by between two steps."""
    rng, period_s, now_s, period, left_s = random.Random(seed), 0.01, 0.0, 0, quota * 0.01
    num_seqs = 1
    for at in range(count):
        if at % 50 == 0:
            num_seqs = rng.randint(1, max_seqs)
        needs_s = (step_s + by_seq_s * num_seqs) * rng.gauss(1.0, 0.05) + outside_s
        while needs_s > left_s:
            needs_s, period = needs_s - left_s, period + 1
            now_s, left_s = period * period_s, quota * period_s
        now_s, left_s = now_s + needs_s, left_s - needs_s
        while now_s >= (period + 1) * period_s:
            period, left_s = period + 1, quota * period_s
        yield num_seqs, now_s


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("step_s", "by_seq_s", "outside_s", "max_seqs"),
    [(3e-4, 5e-5, 1e-4, 8), (1e-4, 3e-5, 5e-5, 16), (1e-3, 1e-4, 2e-4, 16), (4e-4, 2e-4, 1e-4, 32)],
)
def test_what_is_learned_in_a_slice_of_a_processor_is_the_mean_step(step_s, by_seq_s, outside_s, max_seqs, seed):
    """Most steps there take no time, and a few a whole period."""
    quota, sampler, times, ended_s = 0.15, StepSampler(), ServiceTimes(), 0.0
    for num_seqs, now_s in steps_in_a_slice(quota, step_s, by_seq_s, outside_s, max_seqs, 6000, seed):
        seconds, ended_s = now_s - ended_s, now_s
        sampler.ended(False, num_seqs, seconds)
        if sampler.wants(False, now_s):
            sampler.add(StepTime(0, 0, num_seqs, num_seqs * 200, seconds), now_s)
        message = sampler.due(now_s, False)
        for sample in message.samples if message is not None else ():
            times.observe_step(sample)
    for num_seqs in (1, max_seqs // 2, max_seqs):
        mean_s = (step_s + outside_s + by_seq_s * num_seqs) / quota
        assert times.decode_step_s(num_seqs, 200 * num_seqs).seconds == pytest.approx(mean_s, rel=0.15)


def test_the_samples_of_a_mock_worker_are_the_times_of_its_profile():
    tickets = TicketIssuer(PeerId("mock", 1), (TransferAddress("127.0.0.1", 1),), 8, 2, 2, 64)
    profile = MockProfile(step_s=1.0, decode_token_s=0.5, prefill_token_s=0.25, context_token_s=0.001)
    worker = MockWorker(profile, "decode", tickets)
    prompt = pack_ids(array("i", range(20, 60)))
    worker.handle(Generate(1, EngineRequest("r", 0, prompt, b"", SamplingParams(max_tokens=3))), 0.0)
    samples = []
    while (due_s := worker.next_deadline_s()) is not None:
        worker.advance(due_s)
        for message in worker.reports(due_s):
            samples += message.samples if isinstance(message, StepTimes) else ()
    steps = [(s.num_prefill_tokens, s.num_decoding) for s in samples]
    assert steps == [(32, 0), (32, 0), (0, 1), (0, 16), (0, 16), (40, 0), (0, 1), (0, 1)], "first what it timed before"
    for s in samples:
        expected_s = 1.0 + 0.5 * s.num_decoding + 0.25 * s.num_prefill_tokens + 0.001 * s.decode_context_tokens
        assert s.seconds == pytest.approx(expected_s)
    assert samples[5].prefill_context_tokens == 20
    assert [s.decode_context_tokens for s in samples] == [0, 0, 32, 512, 16 * 1024, 0, 41, 42]


@pytest.mark.parametrize("num_pages", [1, 2, 5])
def test_the_times_of_a_small_pool_are_of_steps_that_fit(num_pages: int):
    for sample in MockProfile(num_pages=num_pages, step_s=1.0).steps():
        assert sample.num_prefill_tokens <= 16 * num_pages or sample.prefill_context_tokens
        assert sample.decode_context_tokens <= 16 * num_pages
