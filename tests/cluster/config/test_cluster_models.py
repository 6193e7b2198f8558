"""A cluster of several models: the form of the YAML file, and the view of one model."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.served_config import as_plain, from_plain
from slipstream.cluster.config.setting_errors import settings_at, validated
from slipstream.cluster.config.settings_file import ConfigError, SettingsFile

THREE = """
models:
  - {name: chat, path: a, prefill: {replicas: 1}, decode: {replicas: 2, engine: {kv_cache_mib: 64}}}
  - {name: draft, path: b, min_workers: 0, engine: {kv_cache_mib: 32, page_tokens: 8}, slo: {ttft_ms: 100}}
  - {name: code, path: c, aliases: [gpt-4o-mini], weight: 2, prefill: {tp: 2}}
engine: {max_num_seqs: 8}
"""


def read(folder: Path, text: str) -> ClusterConfig:
    path = folder / "c.yaml"
    path.write_text(text)
    return validated(SettingsFile.read(path, settings_at(())))


def problem(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


def test_an_entry_has_one_decode_worker_unless_it_has_pools(tmp_path: Path) -> None:
    config = read(tmp_path, THREE)
    pools = {one.name: (one.prefill.replicas, one.decode.replicas) for one in config.entries()}
    assert pools == {"chat": (1, 2), "draft": (0, 1), "code": (1, 1)}
    assert config.num_ranks == 3 + 1 + 3


def test_the_engine_of_a_pool_is_that_of_the_cluster_of_the_model_and_its_own(tmp_path: Path) -> None:
    config = read(tmp_path, THREE)
    chat, draft = config.of_model("chat"), config.of_model("draft")
    assert (chat.decode.engine.max_num_seqs, chat.decode.engine.kv_cache_mib) == (8, 64)
    assert (draft.decode.engine.max_num_seqs, draft.decode.engine.kv_cache_mib) == (8, 32)
    assert (chat.prefill.engine.page_tokens, draft.prefill.engine.page_tokens) == (16, 8)


def test_the_view_of_a_model_is_a_cluster_of_its_own(tmp_path: Path) -> None:
    view = read(tmp_path, THREE).of_model("draft")
    assert (view.model.name, view.model.path, view.models) == ("draft", "b", ())
    assert view.router.dispatch.slo.ttft_ms == 100
    assert view.of_model("draft") is view
    with pytest.raises(KeyError):
        view.of_model("chat")


def test_a_single_model_is_an_entry_too(tmp_path: Path) -> None:
    config = read(tmp_path, "model: {path: a, name: one}\nengine: {page_tokens: 8}\n")
    (entry,) = config.entries()
    assert (entry.name, entry.decode.engine.page_tokens, entry.prefill.replicas) == ("one", 8, 1)
    assert config.of_model("one") is config


def test_a_configuration_of_several_models_survives_the_state_file(tmp_path: Path) -> None:
    config = read(tmp_path, THREE)
    assert from_plain(as_plain(config)) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (THREE.replace("weight: 2", "weihgt: 2"), "c.yaml:5: models.2.weihgt: unknown setting; did you mean weight?"),
        (
            THREE.replace("min_workers: 0", "min_workers: -1"),
            "c.yaml:4: models.1.min_workers: must not be negative, got -1",
        ),
        (
            THREE.replace("gpt-4o-mini", "chat"),
            "c.yaml:5: models.2.aliases: must differ from the names of models.0, got 'chat'",
        ),
        (
            THREE + "prefill: {tp: 2}\n",
            'c.yaml:7: prefill: must not be given beside models, each of which has its own, got {"tp": 2}',
        ),
        (
            THREE.replace("gpt-4o-mini", "x" * 300),
            f"c.yaml:5: models.2.aliases: must have at most 256 characters, got 300: {'x' * 40!r}...",
        ),
        (
            THREE.replace("weight: 2", "min_workers: 9") + "budget: {workers: 3}\n",
            "c.yaml:5: models.2.min_workers: must leave all models within budget.workers, which is 3, got 9",
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    assert problem(tmp_path, text) == said
