"""What a worker tells of its steps."""

from array import array

import pytest

from slipstream.kv_transfer.ticket import PeerId, TransferAddress
from slipstream.router.messages import EngineRequest, Generate, SamplingParams, StepTime, pack_ids
from slipstream.workers.mock.engine import MockEngine
from slipstream.workers.mock.profile import MockProfile
from slipstream.workers.step_times import SAMPLE_EVERY_S, TELL_EVERY_S, StepSampler
from slipstream.workers.ticket_office import TicketOffice

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


def test_the_samples_of_a_mock_worker_are_the_times_of_its_profile():
    tickets = TicketOffice(PeerId("mock", 1), (TransferAddress("127.0.0.1", 1),), 8, 2, 2, 64)
    profile = MockProfile(step_s=1.0, decode_token_s=0.5, prefill_token_s=0.25, context_token_s=0.001)
    engine = MockEngine(profile, "decode", tickets)
    prompt = pack_ids(array("i", range(20, 60)))
    engine.handle(Generate(1, EngineRequest("r", 0, prompt, b"", SamplingParams(max_tokens=3))), 0.0)
    samples = []
    while (due_s := engine.next_deadline_s()) is not None:
        engine.advance(due_s)
        message = engine.step_times(due_s)
        samples += message.samples if message is not None else ()
    assert [(s.num_prefill_tokens, s.num_decoding) for s in samples] == [(40, 0), (0, 1), (0, 1)]
    assert samples[0].prefill_context_tokens == 20
    for s in samples:
        expected_s = 1.0 + 0.5 * s.num_decoding + 0.25 * s.num_prefill_tokens + 0.001 * s.decode_context_tokens
        assert s.seconds == pytest.approx(expected_s)
    assert [s.decode_context_tokens for s in samples] == [0, 41, 42]
