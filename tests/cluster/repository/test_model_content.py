"""Which version of a model a configuration means, and what it is called."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.model_content import content_of, unused_name

DEMO = Path(__file__).parents[3] / "models" / "slipstream-demo"


@pytest.fixture
def repository(tmp_path):
    """`chat/1`, `chat/2` and `chat/10`, with folders beside them that are no versions."""
    for name in ("1", "2", "10"):
        shutil.copytree(DEMO, tmp_path / "chat" / name)
    for name in ("latest", "03", "-1"):
        (tmp_path / "chat" / name).mkdir()
    return tmp_path


def load(folder: Path, model: str) -> ClusterConfig:
    path = folder / "c.yaml"
    path.write_text(f"model: {model}\n")
    return load_config(path)


def test_of_numbered_folders_the_highest_is_served_under_the_name_of_the_model(repository):
    config = load(repository, "{path: chat}")
    assert (config.model.name, config.model.version) == ("chat", "10")
    assert config.model.path == str(repository / "chat" / "10")
    assert content_of(config).name == "10"


@pytest.mark.parametrize("version", ["2", "'2'"])
def test_another_folder_can_be_chosen(repository, version):
    config = load(repository, f"{{path: chat, version: {version}}}")
    assert (config.model.path, content_of(config).name) == (str(repository / "chat" / "2"), "2")


@pytest.mark.parametrize("version", ["3", "03", "latest"])
def test_a_folder_that_is_not_there_is_refused_with_those_that_are(repository, version):
    with pytest.raises(ConfigError, match=r"c\.yaml:1: model\.version: no folder .*; there are 1, 2, 10"):
        load(repository, f"{{path: chat, version: '{version}'}}")


@pytest.mark.parametrize("version", ["''", "a b", "a@b", "x" * 65])
def test_a_version_is_a_short_word(tmp_path, version):
    with pytest.raises(ConfigError, match=r"model\.version: must be up to 64 letters"):
        load(tmp_path, f"{{path: {DEMO}, version: {version}}}")


def test_elsewhere_a_version_is_a_name_for_what_is_there(tmp_path):
    config = load(tmp_path, f"{{path: {DEMO}, version: march}}")
    assert (config.model.path, content_of(config).name) == (str(DEMO), "march")


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(DEMO, tmp_path / "copy")
    return tmp_path / "copy"


def test_without_a_name_the_version_follows_from_the_files_and_numeric_settings(tmp_path, copy):
    config = load(tmp_path, f"{{path: {copy}}}")
    first = content_of(config).name
    assert first == content_of(load(tmp_path, f"{{path: {DEMO}}}")).name

    engine = dataclasses.replace(config.decode.engine, quantization="int8")
    decode = dataclasses.replace(config.decode, engine=engine)
    other = dataclasses.replace(config, decode=decode)
    assert content_of(other).name != first
    larger = dataclasses.replace(config.decode, engine=dataclasses.replace(config.decode.engine, max_num_seqs=3))
    assert content_of(dataclasses.replace(config, decode=larger)).name == first


@pytest.mark.parametrize("version", ["", ", version: march"])
def test_any_changed_byte_is_other_content_whatever_the_version_is_called(tmp_path, copy, version):
    config = load(tmp_path, f"{{path: {copy}{version}}}")
    first = content_of(config)
    (shard,) = copy.glob("*.safetensors")
    with shard.open("r+b") as file:
        file.seek(shard.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    second = content_of(config)
    assert second.digest != first.digest
    assert (second.name == first.name) == bool(version)


def test_a_name_that_was_used_gets_a_number():
    assert unused_name("a", []) == "a"
    assert unused_name("a", ["a", "a-2", "b"]) == "a-3"
