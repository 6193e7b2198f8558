"""What the router has fitted becomes a profile; a load that excites all of it fits into the model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.profiling.isolated_runs import (
    DecodeStep,
    IsolatedPrompts,
    IsolatedRuns,
    decode_step,
    isolated_prompts,
    prompt_times,
    step_times,
)
from slipstream.cluster.tools.bench.profiling.profile_fit import Conditions, profile_of, profile_warnings
from slipstream.cluster.tools.bench.profiling.profile_load import CHAT_TOKENS, phases
from slipstream.cluster.tools.bench.profiling.profile_tables import profile_table, steps_table
from slipstream.cluster.tools.bench.profiling.request_timeline import RequestTimeline, RequestTimelines
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.router.protocol.messages import StepTime
from slipstream.router.registry.service_times import KINDS, ServiceTimes

MODEL_DIR = Path(__file__).resolve().parents[4] / "models" / "slipstream-demo"
STEP_S, SEQ_S, TOKEN_S = 0.004, 0.0005, 1e-6
CHUNK_S, NEW_S, PAIR_S = 0.003, 0.0001, 2e-8


def step(num_decoding: int, context: int, num_prefill: int = 0) -> StepTime:
    seconds = STEP_S + SEQ_S * num_decoding + TOKEN_S * context
    if num_prefill:
        seconds = CHUNK_S + NEW_S * num_prefill + PAIR_S * num_prefill * num_prefill / 2
    return StepTime(num_prefill, num_prefill // 2, num_decoding, context, seconds)


def role(name: str, times: ServiceTimes, num_workers: int = 1) -> dict[str, Any]:
    sizes = {"page_tokens": 16, "num_pages": 100, "max_slots": 8, "max_step_tokens": 512, "max_queued_tokens": 999}
    return {
        "role": name,
        "num_workers": num_workers,
        "tp": 2,
        "max_model_len": 2048,
        "num_samples": {kind: times.num_samples(kind) for kind in KINDS},
        "times": times.to_dict(),
        **sizes,
    }


def measured_times(decode: bool, prefill: bool) -> ServiceTimes:
    times = ServiceTimes()
    for _ in range(60):
        for num in (1, 2, 4, 8):
            for length in (32, 256, 1024):
                if decode:
                    times.observe_step(step(num, num * length))
                if prefill:
                    times.observe_step(step(0, 0, length))
        if decode:
            for pages in (1, 16, 64):
                times.observe_transfer(pages, 0.002 + 0.0001 * pages)
    return times


CONDITIONS = Conditions(MODEL_DIR, kv_bytes_per_token=6144, start_s=7.0, has_gpus=False, shares_cores=True)
NOTHING_ALONE, NO_PASSAGES = IsolatedRuns(), RequestTimelines()


def profile(
    roles: list[dict[str, Any]],
    conditions: Conditions = CONDITIONS,
    alone: IsolatedRuns = NOTHING_ALONE,
    timelines: RequestTimelines = NO_PASSAGES,
) -> WorkerProfile:
    return profile_of({"roles": roles}, "mine", "measured", conditions, alone, timelines)


def test_service_times_sizes_and_the_link_are_taken_over() -> None:
    prefill, decode = measured_times(False, True), measured_times(True, False)
    made = profile([role("prefill", prefill), role("decode", decode, 3)])
    for part in (made.prefill, made.decode):  # what a role never did is the other one's
        assert part.decode_s(4, 1000) == pytest.approx(STEP_S + 4 * SEQ_S + 1000 * TOKEN_S, rel=0.05)
        assert part.prefill_s(256) == pytest.approx(CHUNK_S + 256 * NEW_S + PAIR_S * 256 * 128, rel=0.1)
    assert made.link_bytes_per_s == pytest.approx(16 * 6144 / 0.0001, rel=0.1)
    assert (made.page_tokens, made.num_pages, made.start_s, made.workers_per_host) == (16, 100, 7.0, 4)
    assert (made.gpus, made.shared_cores) == (0, True)
    assert WorkerProfile.from_dict(json.loads(made.to_json())) == made


def timeline(at_s: float, num_tokens: int, first_s: float, ended_s: float) -> RequestTimeline:
    return RequestTimeline(
        "p", num_tokens, at_s, at_s, at_s + 0.002, at_s + first_s, at_s + first_s + 0.004, at_s + ended_s
    )


def test_records_say_how_the_time_to_a_first_token_is_made_up_and_what_streams_make_of_it() -> None:
    prompts = [IsolatedPrompts(n, 0.009 + 1e-4 * n) for n in (16, 256, 1024)]
    lone = [timeline(10.0 * at, n, 0.007 + 1e-4 * n, 1.0) for at, n in enumerate([16, 256, 1024] * 4)]
    beside = [timeline(0.05 * at, 256, 0.006 + 2.0 * 0.0256 - 0.002, 5.0) for at in range(12)]
    roles = [role("prefill", measured_times(False, True)), role("decode", measured_times(True, False))]
    made = profile(roles, alone=IsolatedRuns(prompts=prompts), timelines=RequestTimelines(lone, beside))
    assert made.client_s == pytest.approx(0.002)
    assert made.message_s == pytest.approx(0.001)
    assert made.link_latency_s == pytest.approx(0.004)
    for part in (made.prefill, made.decode):
        assert part.prefill_s(256) == pytest.approx(0.003 + 0.0256, rel=1e-3)
    assert made.prefill_beside_decode == pytest.approx(2 * 0.0256 / (0.003 + 0.0256), rel=0.05)
    apart = profile(
        roles, replace(CONDITIONS, shares_cores=False), IsolatedRuns(prompts=prompts), RequestTimelines(lone, beside)
    )
    assert apart.prefill_beside_decode == 1.55


def test_gpus_are_counted_and_kv_bytes_come_from_the_model_where_nothing_was_moved() -> None:
    made = profile(
        [role("decode", measured_times(True, True))], replace(CONDITIONS, kv_bytes_per_token=None, has_gpus=True)
    )
    assert made.gpus == 2
    assert made.kv_bytes_per_token > 0
    assert made.prefill.prefill_token_s == made.decode.prefill_token_s


def test_too_few_samples_are_no_profile() -> None:
    with pytest.raises(BenchError, match="too few prefill steps"):
        profile([role("decode", measured_times(True, False))])
    with pytest.raises(BenchError, match="no workers"):
        profile([])


def streamed(
    gaps: list[tuple[float, int]], num_prompt: int = 100, ttft_s: float = 0.02, cached: int = 0
) -> ClientAnswer:
    answer = ClientAnswer(1.0, status=200, first_s=1.0 + ttft_s, gaps=gaps)
    answer.num_prompt_tokens, answer.num_cached_tokens = num_prompt, cached
    answer.num_output_tokens = 1 + sum(count for _, count in gaps)
    answer.summarise_gaps()
    return answer


def test_a_decode_step_is_the_median_over_the_later_halves_of_streams() -> None:
    steady = [(0.002, 1)] * 5
    first = [(0.5, 1), (0.01, 1), (0.01, 1), (0.01, 1)]
    answers = [streamed([*first, *steady]), streamed([*first, (0.004, 2), *steady[:3]]), streamed([(0.1, 1)] * 9)]
    assert [answer.longest_gap_s for answer in answers] == [0.5, 0.5, 0.1]
    step = decode_step(4, answers)
    assert step is not None
    assert (step.num_seqs, step.context_tokens) == (4, 4 * 105)
    assert step.seconds == pytest.approx(0.002)
    assert decode_step(4, [answers[0], streamed([(0.1, 1)])]) is None  # one alone may have been disturbed


def test_a_line_through_decode_steps_has_nothing_below_zero() -> None:
    def steps(by_step: float, by_seq: float, by_token: float) -> list[DecodeStep]:
        sizes = [(n, n * length) for n in (1, 2, 4, 8) for length in (48, 1050)]
        return [DecodeStep(n, c, by_step + by_seq * n + by_token * c) for n, c in sizes]

    for truth in ((0.004, 0.0005, 1e-6), (0.004, 0.0, 1e-6), (0.0, 0.0005, 0.0)):
        assert step_times(steps(*truth)) == pytest.approx(truth, abs=1e-9)
    found = step_times(steps(0.004, 0.0005, -2e-7))
    assert found is not None
    assert min(found) >= 0
    assert step_times([DecodeStep(1, 100, 0.003)]) is not None
    assert step_times([]) is None


def test_one_measurement_that_contradicts_all_others_does_not_bend_the_line() -> None:
    truth = (0.001, 0.0003, 1e-6)
    sizes = [(n, n * length) for n in (1, 2, 4, 8) for length in (48, 1050)]
    steps = [DecodeStep(n, c, truth[0] + truth[1] * n + truth[2] * c) for n, c in sizes]
    for odd_s in (5e-6, 0.5):  # many tokens in one read; a stall
        for at in range(len(steps)):
            odd = [replace(step, seconds=odd_s) if number == at else step for number, step in enumerate(steps)]
            assert step_times(odd) == pytest.approx(truth, rel=1e-6)


def test_where_measurements_contradict_each_other_none_is_left_out_and_the_profile_is_doubted() -> None:
    seconds = (0.001, 0.02, 0.0004, 0.05, 0.002, 0.3)
    steps = [DecodeStep(n, 100.0 * n, s) for n, s in enumerate(seconds, start=1)]
    alone = IsolatedRuns(steps=steps)
    prefill, decode = measured_times(False, True), measured_times(True, False)
    made = profile([role("prefill", prefill), role("decode", decode)], alone=alone)
    warnings = list(profile_warnings(made, alone))
    assert warnings
    assert "was the machine busy?" in warnings[0]


def test_a_profile_that_its_measurements_bear_out_is_not_doubted() -> None:
    alone = IsolatedRuns(steps=[DecodeStep(n, 100.0 * n, 0.001 + 0.0002 * n) for n in (1, 2, 4, 8, 16)])
    prefill, decode = measured_times(False, True), measured_times(True, False)
    assert not list(profile_warnings(profile([role("prefill", prefill), role("decode", decode)], alone=alone), alone))


def test_lone_prompts_that_a_cache_knew_tell_nothing() -> None:
    new = [streamed([], 100, 0.02), streamed([], 102, 0.03), streamed([], 101, 0.9)]
    assert isolated_prompts([*new, streamed([], 100, 0.001, cached=96)]) == IsolatedPrompts(101, pytest.approx(0.03))
    assert isolated_prompts([new[0]]) is None


def test_prompts_of_three_lengths_tell_of_requests_tokens_and_pairs() -> None:
    def prompts(*lengths: int) -> list[IsolatedPrompts]:
        return [IsolatedPrompts(n, 0.004 + 1e-4 * n + 2e-8 * n * n / 2) for n in lengths]

    assert prompt_times(prompts(20, 68, 260, 1028)) == pytest.approx((0.004, 1e-4, 2e-8))
    assert prompt_times(prompts(20, 68)) is None
    roles = [role("prefill", measured_times(False, True)), role("decode", measured_times(True, True))]
    made = profile(roles, alone=IsolatedRuns(prompts=prompts(20, 68, 260)))
    assert made.client_s == pytest.approx(0.004)
    for part in (made.prefill, made.decode):
        assert part.prefill_s(256) == pytest.approx(1e-4 * 256 + 1e-8 * 256 * 256)
    roles[0]["tp"] = 4  # another kind of worker: the fits stay
    other = profile(roles, alone=IsolatedRuns(prompts=prompts(20, 68, 260)))
    assert other.prefill.prefill_s(256) == pytest.approx(CHUNK_S + 256 * NEW_S + PAIR_S * 256 * 128, rel=0.1)


def test_what_streams_and_lone_prompts_say_goes_before_what_the_router_fitted() -> None:
    roles = [role("decode", measured_times(True, True))]
    steps = [DecodeStep(n, 100 * n, 0.001 + 0.0001 * n) for n in (1, 2, 4)]
    prefill_s = profile(roles).prefill.prefill_s(256)
    alone = IsolatedRuns(steps, [IsolatedPrompts(256, prefill_s + 0.007)])
    made = profile(roles, alone=alone)
    assert made.decode.decode_s(4, 400) == pytest.approx(0.0014)
    assert made.prefill.decode_s(4, 400) == made.decode.decode_s(4, 400)
    assert made.client_s == pytest.approx(0.007)
    text = steps_table(made, alone, {"roles": roles}).text()
    assert "1.400" in text


def test_the_table_says_how_many_samples_there_were() -> None:
    roles = [role("decode", measured_times(True, True))]
    text = profile_table(profile(roles), {"roles": roles}).text()
    assert "decode step, 8 sequences (ms)" in text
    assert "720" in text


@pytest.mark.parametrize(("max_model_len", "max_slots"), [(100, 1), (400, 4), (8192, 256), (131072, 16)])
def test_the_load_fits_and_has_many_sizes(max_model_len: int, max_slots: int) -> None:
    found = list(phases(max_model_len, max_slots))
    for phase in found:
        assert phase.source.input.mean + phase.source.output.mean + CHAT_TOKENS <= max_model_len
        assert (phase.level.concurrency or 0) <= max(max_slots, 4)
    decode = [phase for phase in phases(max_model_len, max_slots, num_workers=3) if phase.kind == "decode"]
    assert [phase.level.concurrency for phase in decode] == [3 * phase.num_seqs for phase in decode]
    if max_model_len > 400:
        assert len({phase.source.input.mean for phase in found}) >= 4
        assert len({phase.level.concurrency for phase in found}) >= 4
