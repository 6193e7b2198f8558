"""Where the model of a configuration is found, and what commands say of one that is elsewhere."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.commands.checking.check_command import check_command
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.downloads import Downloads
from slipstream.cluster.repository.model_location import address_of, with_absolute_path
from slipstream.cluster.sizing.config_choice import config_source, write_chosen
from slipstream.cluster.sizing.serve_target import DEMO_MODEL
from slipstream.cluster.terminal.console import Console
from slipstream.router.model_files.sources.weights_source import SourceError, SourceUnreachable
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from tests.support.router.hub_server import FileServer, HubRepository, files_of, hub

ADDRESS = "hf://org/demo"


@pytest.fixture
def repository() -> HubRepository:
    found = HubRepository()
    found.commit(files_of(DEMO_MODEL))
    return found


@pytest.fixture
def server(repository: HubRepository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub({"org/demo": repository}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def config_at(folder: Path, model: str = f"path: '{ADDRESS}'", more: str = "") -> Path:
    path = folder / "my.yaml"
    path.write_text(f"model: {{{model}}}\n{more}")
    return path


def test_a_remote_model_is_in_the_cache_of_the_host_under_its_name(server: FileServer, tmp_path: Path) -> None:
    config = load_config(config_at(tmp_path, more="model_cache: {path: models, max_gib: 1}"))
    assert Path(config.model.path).parents[1] == tmp_path / "models"
    assert (config.model.name, config.model.version) == ("org/demo", None)
    assert address_of(config.model.path) == f"{ADDRESS}@{Path(config.model.path).name}"
    assert address_of(str(DEMO_MODEL)) == str(DEMO_MODEL)
    assert (Path(config.model.path) / "config.json").is_file()
    assert config.model_cache.path == str(tmp_path / "models")


def test_another_revision_is_another_directory(server: FileServer, repository: HubRepository, tmp_path: Path) -> None:
    first = load_config(config_at(tmp_path)).model.path
    repository.commit(files_of(DEMO_MODEL) | {"generation_config.json": b"{}"})
    second = load_config(config_at(tmp_path)).model.path
    assert first != second
    assert Path(first).is_dir()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("hf://org/none", "my.yaml:1: model.path: hf://org/none: there is no such model, or it needs a token"),
        ("hf://org/demo@x", "my.yaml:1: model.path: hf://org/demo@x: the model has no revision 'x'"),
        ("hf://org", "my.yaml:1: model.path: hf://org: "),
        ("ftp://org/x", "my.yaml:1: model.path: must be a directory or begin with one of hf://"),
    ],
)
def test_a_source_that_fails_is_a_sentence_about_its_key(
    server: FileServer, tmp_path: Path, path: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(config_at(tmp_path, f"path: '{path}'"))
    (problem,) = refused.value.problems
    assert words in problem


def test_check_asks_the_source_and_downloads_no_weights(server: FileServer, tmp_path: Path) -> None:
    path = config_at(tmp_path)
    result = CliRunner().invoke(check_command, ["--elsewhere", str(path)])
    assert result.exit_code == 0, result.output
    assert f"{path}: a start fetches 6 files, 7.2 MiB, from {ADDRESS}" in result.output
    assert server.num_bytes["model.safetensors"] < 300_000
    assert server.num_bytes["tokenizer.json"] > 200_000
    assert not (tmp_path / "cache" / "slipstream" / "models").exists()
    directory = load_config(path).model.path
    result = CliRunner().invoke(check_command, ["--elsewhere", str(path)])
    assert f"{ADDRESS} is in the host's cache, {directory}" in result.output


def test_check_finds_what_is_wrong_with_a_model_that_is_elsewhere(
    server: FileServer, repository: HubRepository, tmp_path: Path
) -> None:
    files = files_of(DEMO_MODEL)
    repository.commit(files | {"model.safetensors": files["model.safetensors"][:-100]})
    result = CliRunner().invoke(check_command, ["--elsewhere", str(config_at(tmp_path))])
    assert result.exit_code == 2
    assert f"model.path: {ADDRESS}/model.safetensors is truncated" in result.output
    assert "outline" not in result.output


def test_a_configuration_is_chosen_without_weights_and_keeps_the_address(server: FileServer, tmp_path: Path) -> None:
    url = WeightsUrl.parse(ADDRESS)
    path = tmp_path / "chosen.yaml"
    assert write_chosen(url, path) == 0
    assert f"path: {ADDRESS}\n" in path.read_text()
    assert server.num_bytes["model.safetensors"] < 300_000
    source = config_source(url, "mine")
    assert load_config(source.path).model.name == "org/demo"
    assert source.sentence(f"{source.path}:2: model.path: is odd") == f"{ADDRESS}: is odd"


def test_a_start_without_its_source_goes_on_with_what_it_had_and_an_update_does_not(
    server: FileServer, repository: HubRepository, tmp_path: Path
) -> None:
    said, url, cache = io.StringIO(), WeightsUrl("hf", "org/demo"), ModelCacheConfig(str(tmp_path / "models"))
    start, update = Downloads(Console(said), must_be_newest=False), Downloads(Console(said))
    server.faults.status = 503
    with pytest.raises(SourceUnreachable, match="the hub answers 503"):
        start.local(url, None, cache)
    server.faults.status = None
    directory, _ = start.local(url, None, cache)
    server.faults.status = 503
    assert start.local(url, None, cache) == (directory, "")
    assert f"{ADDRESS}: the hub answers 503; what it had before is served, {directory}" in said.getvalue()
    with pytest.raises(SourceUnreachable, match="the hub answers 503"):
        update.local(url, None, cache)
    shutil.rmtree(directory)
    with pytest.raises(SourceUnreachable, match="the hub answers 503"):
        start.local(url, None, cache)


def test_a_commit_that_is_there_is_not_asked_for(server: FileServer, repository: HubRepository, tmp_path: Path) -> None:
    url, files = WeightsUrl("hf", "org/demo", repository.revisions["main"]), Downloads(Console(io.StringIO()))
    cache = ModelCacheConfig(str(tmp_path / "models"))
    directory, _ = files.local(url, None, cache)
    server.requests.clear()
    assert files.local(url, None, cache) == (directory, "")
    assert not server.requests


def test_a_download_says_what_it_does(server: FileServer, tmp_path: Path) -> None:
    said = io.StringIO()
    directory, _ = Downloads(Console(said)).local(WeightsUrl("hf", "org/demo"), None, ModelCacheConfig(str(tmp_path)))
    first, last = said.getvalue().splitlines()
    assert first == f"fetching {ADDRESS}: 6 files, 7.2 MiB"
    assert last.startswith(f"fetched {ADDRESS} into {directory} in ")


def test_a_download_is_abandoned_at_the_end_of_a_cluster_and_continued_later(
    server: FileServer, tmp_path: Path
) -> None:
    server.faults.hangs_after = 1_000_000
    files, cache, url = Downloads(Console(io.StringIO())), ModelCacheConfig(str(tmp_path)), WeightsUrl("hf", "org/demo")
    with ThreadPoolExecutor(1) as thread:
        fetching = thread.submit(files.local, url, None, cache)
        while server.num_bytes["model.safetensors"] < 900_000:
            assert not fetching.done()
            time.sleep(0.01)
        files.abandon()
        with pytest.raises(SourceError, match="the download was abandoned, because the cluster ends"):
            fetching.result(20)
    server.faults.hangs_after = None
    server.faults.go_on.set()
    directory, _ = Downloads(Console(io.StringIO())).local(url, None, cache)
    assert (directory / "model.safetensors").read_bytes() == (DEMO_MODEL / "model.safetensors").read_bytes()


def test_a_path_of_the_cache_below_home_is_each_hosts_own(tmp_path: Path) -> None:
    assert with_absolute_path(ModelCacheConfig("~/models"), tmp_path).path == "~/models"
    assert with_absolute_path(ModelCacheConfig("models"), tmp_path).path == str(tmp_path / "models")
    assert with_absolute_path(ModelCacheConfig(), tmp_path).path is None
