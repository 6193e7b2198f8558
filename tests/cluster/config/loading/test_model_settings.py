"""Configurations of several models: what is resolved for each of them, and what is refused, by the key of its entry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.loading.config_warnings import (
    Machine,
    all_memory_parts,
    too_little_memory,
    warnings_about,
)
from slipstream.cluster.config.loading.model_file import entries_of, entry_for_update
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.outlines import Outlines

DEMO = Path(__file__).parents[4] / "models" / "slipstream-demo"
TWO = """
models:
  - {name: chat, path: DEMO, decode: {replicas: 2, engine: {kv_cache_mib: 64}}}
  - path: here/draft
    engine: {kv_cache_mib: 32, max_model_len: 128}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "draft").symlink_to(DEMO)
    return tmp_path


def written(folder: Path, text: str, name: str = "c.yaml") -> Path:
    path = folder / name
    path.write_text(text.replace("DEMO", str(DEMO)))
    return path


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(written(folder, text))
    return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


def test_a_mistake_in_the_engine_of_both_pools_is_named_once(folder: Path) -> None:
    shared = "  - {path: DEMO, name: x, engine: {max_model_len: 999999}}"
    (problem,) = problems(folder, TWO + shared)
    assert problem.startswith("c.yaml:6: models.2.engine.max_model_len: must be at most the model's")
    of_one = "  - {path: DEMO, name: x, prefill: {engine: {max_model_len: 999999}}}"
    (problem,) = problems(folder, TWO + of_one)
    assert problem.startswith("c.yaml:6: models.2.prefill.engine.max_model_len: must be at most the model's")


def test_each_model_gets_its_path_and_a_name(folder: Path) -> None:
    config = load_config(written(folder, TWO))
    assert [(entry.name, entry.path) for entry in config.models] == [
        ("chat", str(DEMO)),
        ("draft", str(folder / "here" / "draft")),
    ]
    assert config.model.name == "chat"


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("  - {path: nowhere}", "c.yaml:6: models.2.path: no such directory"),
        ("  - {path: DEMO, name: draft}", "c.yaml:6: models.2.name: must differ from the names of models.1"),
        ("  - {path: DEMO, name: x, aliases: [chat]}", "c.yaml:6: models.2.aliases: must differ from the names of"),
        ("  - {path: DEMO, name: a@b}", "c.yaml:6: models.2.name: must not contain @, got 'a@b'"),
        (
            "  - {path: DEMO, name: x, decode: {tp: 3}}",
            "c.yaml:6: models.2.decode.tp: must divide the model's num",
        ),
        (
            "  - path: DEMO\n    name: x\n    engine:\n      max_model_len: 999999",
            "c.yaml:9: models.2.engine.max_model_len: must be at most the model's",
        ),
        (
            "budget: {workers: 2}",
            "c.yaml:6: budget.workers: must be at least the 3 workers with which",
        ),
    ],
)
def test_a_mistake_is_named_with_the_key_of_its_entry_and_the_line(folder: Path, more: str, problem: str) -> None:
    assert any(one.startswith(problem) for one in problems(folder, TWO + more)), problems(folder, TWO + more)


def test_a_mistake_in_the_first_model_has_the_key_of_its_entry(folder: Path) -> None:
    text = "models:\n  - path: DEMO\n    decode: {replica: 2}\n  - {name: x}\n"
    assert problems(folder, text) == [
        "c.yaml:3: models.0.decode.replica: unknown setting; did you mean replicas?",
        "c.yaml:4: models.1.path: missing",
    ]
    assert problems(folder, "models: [{name: x}]") == ["c.yaml:1: models.0.path: missing"]


def test_the_memory_of_all_models_is_added_up(folder: Path) -> None:
    config = load_config(written(folder, TWO))
    parts = {part.said: part.mib for part in all_memory_parts(config)}
    assert parts["models.0.decode.engine.kv_cache_mib is 64"] == 2 * 64
    assert parts["models.1.decode.engine.kv_cache_mib is 32"] == 32
    assert {"the weights in models.0.path", "the weights in models.1.path"} <= parts.keys()
    (warning,) = warnings_about(config, Machine((sum(parts.values()) - 1) << 20, 64))
    assert f"together {sum(parts.values())} MiB at least" in warning


def test_the_memory_of_more_groups_than_are_configured_is_judged(folder: Path) -> None:
    config = load_config(written(folder, TWO))
    room = Machine(2 * sum(part.mib for part in all_memory_parts(config)) << 20, 64)
    assert too_little_memory(config, room) is None
    warning = too_little_memory(config, room, {"chat": {"decode": 99}})
    assert warning is not None
    assert "models.0.decode.engine.kv_cache_mib is 64 (99 x 64 MiB)" in warning


def test_all_models_divide_one_budget_of_memory(folder: Path) -> None:
    parts = list(all_memory_parts(load_config(written(folder, TWO + "budget: {memory_gib: 2}"))))
    assert [part.mib for part in parts if part.said == "budget.memory_gib is 2"] == [2048]
    assert not any("kv_cache_mib" in part.said for part in parts)


def test_a_model_without_workers_and_without_a_planner_is_warned_of(folder: Path) -> None:
    config = load_config(written(folder, TWO + "  - {path: DEMO, name: cold, decode: {replicas: 0}}"))
    (warning,) = warnings_about(config, Machine(1 << 40, 64))
    assert warning.startswith("models.2.decode.replicas is 0, and no planner is enabled: requests of cold wait until")


@pytest.mark.parametrize(
    "text",
    ["name: code\npath: DEMO\naliases: [coder]\n", "models:\n  - {name: code, path: DEMO, aliases: [coder]}\n"],
)
def test_a_model_to_add_is_one_entry_or_a_list(folder: Path, text: str) -> None:
    running = load_config(written(folder, TWO + "engine: {max_num_seqs: 5}"))
    (entry,) = entries_of(written(folder, text, "code.yaml"), running, pytest.fail, Outlines())
    assert (entry.name, entry.path, entry.aliases) == ("code", str(DEMO), ("coder",))
    assert (entry.prefill.replicas, entry.decode.replicas, entry.decode.engine.max_num_seqs) == (0, 1, 5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("path: nowhere\n", "code.yaml:1: path: no such directory"),
        ("path: DEMO\ndecode: {replica: 2}\n", "code.yaml:2: decode.replica: unknown setting; did you mean replicas?"),
        ("- a list\n", "code.yaml: must be a mapping of settings, got a list"),
    ],
)
def test_a_mistake_in_a_model_to_add_has_the_line_of_its_file(folder: Path, text: str, problem: str) -> None:
    running = load_config(written(folder, TWO))
    with pytest.raises(ConfigError) as caught:
        entries_of(written(folder, text, "code.yaml"), running, pytest.fail, Outlines())
    assert caught.value.problems[0].replace(f"{folder}/", "").startswith(problem)


def test_a_fifo_is_not_waited_for(folder: Path) -> None:
    running = load_config(written(folder, TWO))
    os.mkfifo(folder / "fifo")
    with pytest.raises(ConfigError, match="fifo: must be a file"):
        entries_of(folder / "fifo", running, pytest.fail, Outlines())


def test_an_update_of_a_model_takes_its_entry_and_leaves_the_others(folder: Path) -> None:
    running = load_config(written(folder, TWO))
    changed = written(
        folder, TWO.replace("max_model_len: 128", "max_model_len: 64").replace("replicas: 2", "replicas: 7")
    )
    alone = entry_for_update(changed, "draft", running, pytest.fail, Outlines())
    assert (alone.model.name, alone.decode.engine.max_model_len) == ("draft", 64)
    entry = written(folder, "path: DEMO\nengine: {max_model_len: 32}\n", "draft.yaml")
    alone = entry_for_update(entry, "draft", running, pytest.fail, Outlines())
    assert (alone.model.name, alone.model.path, alone.decode.engine.max_model_len) == ("draft", str(DEMO), 32)
    with pytest.raises(ConfigError, match="model 'other' is not in it; there are: chat, draft"):
        entry_for_update(changed, "other", running, pytest.fail, Outlines())
