"""Which version of a model a configuration means, and what it is called."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from slipstream.cluster.config import ClusterConfig
from slipstream.cluster.config_file import load_config
from slipstream.cluster.model_version import version_of
from slipstream.cluster.settings_file import ConfigError

DEMO = Path(__file__).parents[2] / "models" / "slipstream-demo"


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
    assert version_of(config) == "10"


@pytest.mark.parametrize("version", ["2", "'2'"])
def test_another_folder_can_be_chosen(repository, version):
    config = load(repository, f"{{path: chat, version: {version}}}")
    assert (config.model.path, version_of(config)) == (str(repository / "chat" / "2"), "2")


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
    assert (config.model.path, version_of(config)) == (str(DEMO), "march")


def test_without_a_name_the_version_follows_from_weights_and_numeric_settings(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(DEMO, copy)
    config = load(tmp_path, f"{{path: {copy}}}")
    first = version_of(config)
    assert first == version_of(load(tmp_path, f"{{path: {DEMO}}}"))

    engine = dataclasses.replace(config.decode.engine, quantization="int8")
    decode = dataclasses.replace(config.decode, engine=engine)
    other = dataclasses.replace(config, decode=decode)
    assert version_of(other) != first
    larger = dataclasses.replace(config.decode, engine=dataclasses.replace(config.decode.engine, max_num_seqs=3))
    assert version_of(dataclasses.replace(config, decode=larger)) == first

    (shard,) = copy.glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start:] = bytes(byte ^ 1 for byte in data[start:])  # the last bit of every number
    shard.write_bytes(data)
    assert version_of(config) != first
