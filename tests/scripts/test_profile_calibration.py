"""What `scripts/simulation_check/check_simulation.py` learns from waves of answers and lone prompts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from scripts.simulation_check.measured_load import Seen
from scripts.simulation_check.profile_calibration import Wave, lone_prompt, profile_from, wave_of
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerRoleProfile

TRUE = WorkerRoleProfile(5e-4, 1e-4, 2e-7, 1e-3, 4e-5, 3e-8, 64, 512, 8192)
SIZES = {"page_tokens": 16, "num_pages": 3000, "max_model_len": 4096, "num_workers": 1}
ROLES = [{"role": role, **SIZES, **asdict(TRUE)} for role in ("prefill", "decode")]
LENGTHS = (16, 128, 512, 1024, 2048, 3000)


def record(length: int, is_remote: bool, slowness: float) -> dict[str, object]:
    begun_s = 0.002 if is_remote else 0.0
    first_s = begun_s + 0.002 + slowness * TRUE.prefill_s(length)
    timeline = {"placed": 0.0, "reserved": begun_s, "first_token": first_s, "decode": first_s + 0.0005}
    return {"prefill": "prefill-0" if is_remote else None, "timeline": timeline}


def test_times_that_a_cluster_has_are_found_in_what_clients_and_router_saw() -> None:
    waves = [Wave(n, n * tokens, TRUE.decode_s(n, n * tokens)) for n in (1, 2, 4, 8, 16) for tokens in (48, 544)]
    lone = []
    for slowness, is_remote in ((1.0, True), (1.4, False)):
        for length in LENGTHS * 2:
            request = record(length, is_remote, slowness)
            first_s = request["timeline"]["first_token"]  # type: ignore[index]
            lone.append(lone_prompt(request, length, first_s + 0.0016))
    profile = profile_from(ROLES, waves, lone, Path("/nowhere"))
    assert profile.decode.decode_s(6, 3000) == pytest.approx(TRUE.decode_s(6, 3000), rel=1e-3)
    assert profile.prefill.prefill_s(800) == pytest.approx(TRUE.prefill_s(800), rel=1e-3)
    assert profile.decode.prefill_s(800) == pytest.approx(1.4 * TRUE.prefill_s(800), rel=1e-3)
    assert (profile.message_s, profile.client_s) == (pytest.approx(0.001), pytest.approx(0.0016))
    assert profile.link_latency_s == pytest.approx(0.0005)


def test_a_role_that_hardly_computed_prompts_is_taken_for_like_the_other_one() -> None:
    lone = [lone_prompt(record(length, False, 1.0), length, 1.0) for length in LENGTHS * 2]
    profile = profile_from(ROLES, [Wave(1, 50.0, 6e-4)], lone, Path("/nowhere"))
    assert (
        profile.prefill.prefill_s(800) == profile.decode.prefill_s(800) == pytest.approx(TRUE.prefill_s(800), rel=1e-3)
    )


def test_a_role_that_computed_short_prompts_only_is_not_asked_what_long_ones_take() -> None:
    lone = [lone_prompt(record(length, length > 512, 1.0), length, 1.0) for length in LENGTHS * 5]
    profile = profile_from(ROLES, [Wave(1, 50.0, 6e-4)], lone, Path("/nowhere"))
    for role in (profile.prefill, profile.decode):
        assert role.prefill_s(16) == pytest.approx(TRUE.prefill_s(16), rel=1e-3)
        assert role.prefill_s(3000) == pytest.approx(TRUE.prefill_s(3000), rel=1e-3)


def test_gaps_are_those_in_which_all_decode() -> None:
    seen = Seen(0.0, 1.0, 1.5, 6, (1.0, 1.1, 1.25, 1.3, 1.4, 1.5))
    assert seen.gaps_between(1.1, 1.4) == pytest.approx([0.15, 0.05, 0.1])


def test_a_wave_whose_answers_were_never_all_there_tells_nothing() -> None:
    early = Seen(0.0, 0.1, 0.4, 4, (0.1, 0.2, 0.3, 0.4))
    late = Seen(0.0, 0.5, 0.8, 4, (0.5, 0.6, 0.7, 0.8))
    assert wave_of([early, late], 16) is None
    wave = wave_of([early, early], 16)
    assert wave is not None
    assert wave.step_s == pytest.approx(0.1)
