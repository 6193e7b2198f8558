"""The files of a version on other hosts than the driver's: here, other cache directories."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from slipstream.router.model_files.cache import version_files as module
from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_files.cache.version_files import fetch_text, version_files
from slipstream.router.model_files.cache.version_plan import plan_version
from slipstream.router.model_files.file_digest import DigestCache, FilesChanged
from slipstream.router.model_files.manifest import REFUSES, Manifest
from slipstream.router.model_files.sources.directory_source import DirectorySource
from slipstream.router.model_files.sources.weights_source import SourceRefused
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from slipstream.router.model_files.text_copy import copy_of, read_text

FILES = {"config.json": b"{}", "model.safetensors": os.urandom(5000), "tokenizer.json": b"{ }"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the driver's host."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "driver"))
    return tmp_path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def manifest(model: Path) -> tuple[Path, Manifest]:
    """What the driver has fetched, and its manifest."""
    source = DirectorySource(WeightsUrl("file", str(model)))
    directory = HostCache().fetch(source, plan_version(source, None), lambda text: None)
    return directory, Manifest.read(directory, DigestCache(None))


def on_another_host(home: Path, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "other"))
    directory.rename(directory.with_name("on the driver's host"))


def test_the_directory_of_a_plain_model_stays_as_it_is(model: Path) -> None:
    manifest = Manifest.read(model, DigestCache(None))
    with version_files(model, manifest, print) as directory:
        assert directory == model
    with version_files(model, None, print) as directory:
        assert directory == model


def test_on_the_drivers_host_nothing_is_fetched_again(model: Path, manifest: tuple[Path, Manifest]) -> None:
    shutil.rmtree(model)
    with version_files(*manifest, print) as directory:
        assert directory == manifest[0]


def test_another_host_fetches_the_same_files_into_its_own_cache(
    home: Path, monkeypatch: pytest.MonkeyPatch, manifest: tuple[Path, Manifest]
) -> None:
    on_another_host(home, monkeypatch, manifest[0])
    with version_files(*manifest, print) as directory:
        assert home / "other" in directory.parents
        manifest[1].verify(directory, DigestCache(None))
    shutil.rmtree(home / "model")
    with version_files(*manifest, print) as again:  # not even the source is asked
        assert again == directory


def test_another_host_refuses_files_that_are_others_now(
    home: Path, model: Path, monkeypatch: pytest.MonkeyPatch, manifest: tuple[Path, Manifest]
) -> None:
    (model / "model.safetensors").write_bytes(os.urandom(5000))
    on_another_host(home, monkeypatch, manifest[0])
    refused = pytest.raises(FilesChanged, match=f"{REFUSES} other files than those of the start: file://{model}")
    with refused, version_files(*manifest, print):
        pass


def test_a_source_that_is_gone_is_a_sentence(
    home: Path, model: Path, monkeypatch: pytest.MonkeyPatch, manifest: tuple[Path, Manifest]
) -> None:
    on_another_host(home, monkeypatch, manifest[0])
    shutil.rmtree(model)
    refused = pytest.raises(SourceRefused, match=f"file://{model}: there is no such directory")
    with refused, version_files(*manifest, print):
        pass


def test_a_router_on_another_host_fetches_only_the_text(
    home: Path, monkeypatch: pytest.MonkeyPatch, manifest: tuple[Path, Manifest]
) -> None:
    directory, files = manifest
    on_another_host(home, monkeypatch, directory)
    fetch_text(directory, [files])
    copy = copy_of(files)
    assert copy is not None
    assert sorted(path.name for path in copy.iterdir()) == ["config.json", "tokenizer.json"]
    assert read_text(directory, [files], lambda folder: folder) == copy


def test_a_router_beside_the_driver_fetches_nothing(
    monkeypatch: pytest.MonkeyPatch, manifest: tuple[Path, Manifest]
) -> None:
    monkeypatch.setattr(module, "open_source", lambda url: pytest.fail("a source was opened"))
    fetch_text(manifest[0], [manifest[1]])
