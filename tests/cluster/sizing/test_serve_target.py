"""What may be given in the place of a configuration, and the configuration that is chosen for it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.processes import process_tree
from slipstream.cluster.repository.outlines import Outlines
from slipstream.cluster.sizing import serve_target as target_module
from slipstream.cluster.sizing.chosen_config import config_text, name_in_hub_cache, settings_of
from slipstream.cluster.sizing.config_choice import ConfigSource, checked_config, config_source, write_chosen
from slipstream.cluster.sizing.machine_facts import MIB, MachineFacts
from slipstream.cluster.sizing.model_size import ModelFacts
from slipstream.cluster.sizing.pool_choice import PoolChoice, SizingChoice
from slipstream.cluster.sizing.serve_target import DEMO_MODEL, chosen_for
from slipstream.cluster.state import cluster_state, host_folders, name_claim, state_file
from slipstream.workers.models.directory.model_config import ModelConfig

GIB = 1024 * MIB


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MachineFacts:
    found = MachineFacts(2, 8 * GIB)
    monkeypatch.setattr(target_module, "read_machine", lambda: found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return found


def model_in(folder: Path) -> Path:
    shutil.copytree(DEMO_MODEL, folder)
    return folder


def problem_of(target: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        chosen_for(target, Outlines())
    (problem,) = refused.value.problems
    return problem


def test_nothing_means_the_demo_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_source(None, None).path
    assert path == tmp_path / "cache" / "slipstream" / "chosen" / "slipstream.yaml"
    config = load_config(path)
    assert config.model.name == "slipstream-demo"
    assert (config.prefill.replicas, config.decode.replicas) == (1, 1)
    assert config.engine.max_model_len == 4096
    assert config.ray.address == "local"
    shown = capsys.readouterr().out
    assert "2 cores, 8.0 GiB of free memory, no GPU" in shown
    assert "slipstream serve --write my.yaml" in shown


def test_a_models_directory_is_served_under_its_name(tmp_path: Path) -> None:
    model = model_in(tmp_path / "some model")
    config = load_config(config_source(model, "mine").path)
    assert config.model.path == str(model)
    assert config.model.name == "some model"


def test_the_file_of_a_cluster_that_runs_is_not_replaced(tmp_path: Path) -> None:
    path = config_source(None, None).path
    before = path.read_text()
    pid, started = os.getpid(), process_tree.start_time(os.getpid()) or 0.0
    host_folders.run_folder().mkdir()
    state = cluster_state.ClusterState("slipstream", pid, started, str(path), "m", "ready", driver=pid)
    state_file.write(host_folders.run_folder() / "slipstream.json", state)
    other = model_in(tmp_path / "other")
    with pytest.raises(name_claim.AlreadyRunning, match="a cluster named slipstream runs already"):
        config_source(other, None)
    assert path.read_text() == before
    assert config_source(other, "second").path.name == "second.yaml"


def test_a_name_that_is_none_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    assert config_source(None, "../../x").path.parent == tmp_path / "cache" / "slipstream" / "chosen"


def test_the_newest_of_numbered_versions_is_measured(tmp_path: Path) -> None:
    model_in(tmp_path / "model" / "1")
    config = checked_config(tmp_path / "model", Outlines())
    assert config.model.name == "model"
    assert config.model.version == "1"


def test_a_configuration_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"model: {{path: {DEMO_MODEL}}}")
    assert chosen_for(path, Outlines()) is None
    assert config_source(path, None) == ConfigSource(path)
    assert checked_config(path, Outlines()).name == "slipstream"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nothing", "nothing: no such file or directory; give a configuration (.yaml) or the directory of a model"),
        ("org/model-7b", "for the model of the Hugging Face Hub: hf://org/model-7b"),
        ("model.gguf", "model.gguf: no such file; a model is served from its directory"),
        (str(DEMO_MODEL / "model.safetensors"), "a model is served from its directory, with config.json"),
    ],
)
def test_what_is_neither_is_refused_with_what_to_give(target: str, words: str) -> None:
    assert words in problem_of(Path(target))


def test_a_configuration_that_is_not_there_is_refused_when_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.yaml: no such file"):
        checked_config(tmp_path / "nope.yaml", Outlines())


def test_a_directory_without_a_model_says_what_is_missing_and_where_one_is(tmp_path: Path) -> None:
    assert problem_of(tmp_path) == f"no config.json in {tmp_path}"
    (tmp_path / "my.yaml").write_text("")
    assert problem_of(tmp_path).endswith(f"give one of the configurations in it, such as {tmp_path / 'my.yaml'}")
    (tmp_path / "snapshots" / "abc").mkdir(parents=True)
    (tmp_path / "snapshots" / "abc" / "config.json").write_text("{}")
    assert problem_of(tmp_path).endswith(f"the model is in {tmp_path / 'snapshots' / 'abc'}")


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    model = model_in(tmp_path / "m")
    (model / "model.safetensors").unlink()
    assert "has neither model.safetensors nor" in problem_of(model)


def test_an_architecture_that_is_not_supported_is_refused_by_name(tmp_path: Path) -> None:
    model = model_in(tmp_path / "m")
    config = json.loads((model / "config.json").read_text()) | {"architectures": ["OtherLM"], "model_type": "other"}
    (model / "config.json").write_text(json.dumps(config))
    assert "config.json: model_type: 'other' is not supported: transformers" in problem_of(model)


def test_a_model_that_does_not_fit_is_refused_with_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "read_machine", lambda: MachineFacts(2, GIB))
    assert problem_of(DEMO_MODEL).startswith(f"{DEMO_MODEL}: it does not fit into memory: of 1.0 GiB that are free")


def test_what_was_chosen_can_be_written_and_served_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    assert write_chosen(DEMO_MODEL, path) == 0
    assert load_config(path) == load_config(config_source(DEMO_MODEL, None).path)
    assert f"slipstream serve {path}" in capsys.readouterr().out
    before = path.read_text()
    assert write_chosen(DEMO_MODEL, path) == 2
    assert path.read_text() == before
    assert f"{path}: is there already" in capsys.readouterr().err
    assert write_chosen(path, tmp_path / "other.yaml") == 2
    assert "is a configuration already" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert write_chosen(None, tmp_path / "file" / "my.yaml") == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "choice",
    [
        SizingChoice("cpu", PoolChoice(2, 16, 512), PoolChoice(1, 32, 1024), 4096, 64, notes=("a note",)),
        SizingChoice("cuda", PoolChoice(1, None, 30000), PoolChoice(3, None, 30000), 4096, 256, tp=2),
        SizingChoice("cuda", PoolChoice(0), PoolChoice(1, None, 60000), 4096, 256),
    ],
    ids=["host", "groups of GPUs", "one GPU"],
)
def test_every_choice_is_a_configuration_that_is_accepted(
    choice: SizingChoice, machine: MachineFacts, tmp_path: Path
) -> None:
    path = tmp_path / "chosen.yaml"
    path.write_text(config_text(choice, machine, DEMO_MODEL))
    config: ClusterConfig = load_config(path)
    assert yaml.safe_load(path.read_text()) == settings_of(choice, DEMO_MODEL)
    for role, pool in config.pools():
        chosen = choice.prefill if role == "prefill" else choice.decode
        assert pool.replicas == chosen.replicas
        if chosen.replicas:
            assert (pool.tp, pool.engine.kv_cache_mib) == (choice.tp, chosen.kv_cache_mib)
            assert pool.engine.num_threads == chosen.num_threads
            assert pool.engine.max_model_len == choice.max_model_len
            assert pool.num_gpus == (1 if choice.device == "cuda" else None)
    assert ("cuda_ipc" in config.kv_transfer.tls) == (choice.device == "cuda")


def test_a_model_in_the_hubs_cache_is_named_as_on_the_hub() -> None:
    hub = Path("/home/me/.cache/huggingface/hub")
    assert name_in_hub_cache(hub / "models--Qwen--Qwen3-0.6B" / "snapshots" / "c1899de") == "Qwen/Qwen3-0.6B"
    assert name_in_hub_cache(Path("/models/llama")) is None
    assert name_in_hub_cache(Path("/")) is None


def test_the_size_of_the_demo_model_is_that_of_its_file() -> None:
    facts = ModelFacts.of(ModelConfig.read(DEMO_MODEL))
    stored = (DEMO_MODEL / "model.safetensors").stat().st_size
    tied = 4096 * 256 * 2  # the vocabulary, which is stored once
    assert facts.weight_bytes == pytest.approx(stored + tied, rel=0.01)
    assert facts.kv_token_bytes == 5 * 4 * 32 * 2 * 2
    assert facts.is_native
