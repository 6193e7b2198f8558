"""What the router has fitted becomes a profile; a load that excites all of it fits into the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.cluster.bench.profiling import CHAT_TOKENS, phases, profile_of, profile_table
from slipstream.cluster.bench.target import BenchError
from slipstream.cluster.sim.profile import WorkerProfile
from slipstream.router.messages import StepTime
from slipstream.router.placement.service_times import KINDS, ServiceTimes

MODEL_DIR = Path(__file__).resolve().parents[3] / "models" / "slipstream-demo"
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


def profile(roles: list[dict[str, Any]], **changes: Any) -> WorkerProfile:
    settings: dict[str, Any] = {"model_dir": MODEL_DIR, "kv_bytes_per_token": 6144, "start_s": 7.0}
    settings |= {"has_gpus": False, "shares_cores": True, **changes}
    return profile_of({"roles": roles}, "mine", "measured", **settings)


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


def test_gpus_are_counted_and_kv_bytes_come_from_the_model_where_nothing_was_moved() -> None:
    made = profile([role("decode", measured_times(True, True))], kv_bytes_per_token=None, has_gpus=True)
    assert made.gpus == 2
    assert made.kv_bytes_per_token > 0
    assert made.prefill.prefill_token_s == made.decode.prefill_token_s


def test_too_few_samples_are_no_profile() -> None:
    with pytest.raises(BenchError, match="too few prefill steps"):
        profile([role("decode", measured_times(True, False))])
    with pytest.raises(BenchError, match="no workers"):
        profile([])


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
    if max_model_len > 400:
        assert len({phase.source.input.mean for phase in found}) >= 4
        assert len({phase.level.concurrency for phase in found}) >= 4
