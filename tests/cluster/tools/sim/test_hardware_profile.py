from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from slipstream.cluster.tools.sim.hardware.hardware_profile import ProfileError, WorkerProfile
from slipstream.cluster.tools.sim.hardware.roofline import H200, LLAMA_8B, PROFILES, SHIPPED, roofline


def test_shipped_profiles_can_be_read_and_come_back_as_they_were(tmp_path: Path) -> None:
    paths = sorted(PROFILES.glob("*.json"))
    assert paths
    for path in paths:
        profile = WorkerProfile.read(path)
        assert profile.name == path.stem
        profile.write(tmp_path / "again.json")
        assert WorkerProfile.read(tmp_path / "again.json") == profile


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda one: one[1].name)
def test_shipped_rooflines_are_what_the_formula_gives(shipped: tuple[object, object, int]) -> None:
    profile = roofline(*shipped)  # type: ignore[arg-type]
    assert WorkerProfile.read(PROFILES / f"{profile.name}.json") == profile


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_pages", 0, "num_pages must be 1 to 1e+18, got 0"),
        ("num_pages", 10**400, "num_pages must be 1 to 1e+18, got 1000"),
        ("link_bytes_per_s", 10**400, "link_bytes_per_s must be a number from 0 to 1e+18, got 1000"),
        ("link_bytes_per_s", 0.0, "link_bytes_per_s must be over 0"),
        ("noise", float("nan"), "noise must be a number from 0"),
        ("decode_beside_prefill", 0.5, "decode_beside_prefill must be at least 1, got 0.5"),
        ("num_pages", "many", "num_pages: int was expected"),
        ("link_latency_s", -1.0, "link_latency_s must be a number from 0 to 1e+18, got -1.0"),
        ("decode", 3, "decode: an object was expected"),
        ("colour", "red", "colour: there is no such key"),
    ],
)
def test_a_bad_value_is_named_with_file_and_key(tmp_path: Path, key: str, value: object, said: str) -> None:
    values = asdict(roofline(H200, LLAMA_8B))
    values[key] = value
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ProfileError) as caught:
        WorkerProfile.read(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_or_nested_key_is_named() -> None:
    values = asdict(roofline(H200, LLAMA_8B))
    del values["prefill"]["max_slots"]
    with pytest.raises(ProfileError, match=r"prefill\.max_slots: is missing"):
        WorkerProfile.from_dict(values)


def test_a_file_that_is_nested_without_end_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ProfileError, match=r"deep\.json: not JSON"):
        WorkerProfile.read(path)


def test_profiles_of_before_can_still_be_read() -> None:
    profile = roofline(H200, LLAMA_8B)
    assert WorkerProfile.from_dict({**asdict(profile), "prefill_share": 0.75}) == profile


def test_who_computes_on_the_same_cores_makes_steps_longer_each_by_its_role() -> None:
    profile = replace(roofline(H200, LLAMA_8B), prefill_beside_decode=1.5, decode_beside_prefill=8.0)
    assert profile.stretch("prefill", []) == profile.stretch("decode", []) == 1.0
    assert profile.stretch("prefill", ["decode"]) == 1.5
    assert profile.stretch("decode", ["prefill"]) == 8.0
    assert profile.stretch("decode", ["decode", "prefill"]) == 9.0
    assert profile.stretch("prefill", ["decode", "decode", "prefill"]) == 3.0
