"""The entry that is chosen for a language model of a repository."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.model_location import ModelFiles
from slipstream.cluster.sizing.chosen_entry import Room, chosen_entry, laid_over
from slipstream.cluster.sizing.machine_facts import MachineFacts
from slipstream.cluster.sizing.serve_target import DEMO_MODEL
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from slipstream.router.status.wanted_models import WantedModel

ANY = Room()
MACHINE = MachineFacts(num_cores=2, memory_bytes=8 << 30)


class OnHub(ModelFiles):
    def local(self, url: WeightsUrl, number: str | None, cache: ModelCacheConfig) -> tuple[Path, str]:
        return DEMO_MODEL, ""


def entry(model: WantedModel, room: Room = ANY, machine: MachineFacts = MACHINE) -> dict[str, object]:
    text = chosen_entry(model, machine, room, OnHub(), ModelCacheConfig())
    parsed: dict[str, object] = yaml.safe_load(text)
    return parsed


def replicas(found: dict[str, object]) -> tuple[int, int]:
    prefill, decode = found["prefill"], found["decode"]
    assert isinstance(prefill, dict)
    assert isinstance(decode, dict)
    return prefill["replicas"], decode["replicas"]


def test_pools_are_those_that_serve_would_choose_and_the_models_settings_count() -> None:
    settings = {"engine": {"max_model_len": 512}, "generation_config": "none"}
    found = entry(WantedModel("topics", str(DEMO_MODEL), settings))
    assert (found["name"], found["path"], found["generation_config"]) == ("topics", str(DEMO_MODEL), "none")
    assert replicas(found) == (1, 1)
    engine = found["engine"]
    assert isinstance(engine, dict)
    assert (engine["device"], engine["max_model_len"], engine["max_num_seqs"]) == ("cpu", 512, 64)


@pytest.mark.parametrize(("free", "expected"), [(2, (1, 1)), (1, (0, 1)), (0, (0, 1))])
def test_a_budget_of_workers_takes_prefill_workers_first(free: int, expected: tuple[int, int]) -> None:
    assert replicas(entry(WantedModel("m", str(DEMO_MODEL)), Room(free))) == expected


def test_a_model_takes_the_gpus_that_others_leave() -> None:
    machine = replace(MACHINE, gpu_bytes=(70 << 30, 2 << 30, 71 << 30, 1 << 30))
    found = entry(WantedModel("m", str(DEMO_MODEL)), Room(gpus=2), machine)
    decode = found["decode"]
    assert isinstance(decode, dict)
    assert decode["num_gpus"] == 1
    assert sum(replicas(found)) == 2
    with pytest.raises(ConfigError, match="no GPU is free: all 4 are reserved"):
        entry(WantedModel("m", str(DEMO_MODEL)), Room(gpus=0), machine)


def test_an_address_stays_one_and_its_files_are_looked_at() -> None:
    assert entry(WantedModel("m", "hf://org/name"))["path"] == "hf://org/name"


def test_a_path_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json in"):
        entry(WantedModel("m", str(tmp_path)))


def test_sections_are_merged_key_by_key() -> None:
    before = {"engine": {"a": 1, "b": 2}, "path": "/m"}
    assert laid_over(before, {"engine": {"b": 3}, "decode": {"tp": 2}}) == {
        "engine": {"a": 1, "b": 3},
        "path": "/m",
        "decode": {"tp": 2},
    }
    assert before["engine"] == {"a": 1, "b": 2}
