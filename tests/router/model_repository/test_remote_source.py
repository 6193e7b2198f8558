"""A repository that is not on this host. (A directory with its address stands for an object store.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_files.sources.weights_source import Listing, SourceFile, SourceRefused
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.repository_error import RepositoryError
from slipstream.router.model_repository.sources import remote_source
from slipstream.router.model_repository.sources.remote_source import RemoteSource
from slipstream.router.model_repository.sources.repository_watch import RepositoryChanges, changes_between
from tests.support.router.model_folders import write_model
from tests.support.router.s3_server import ACCOUNT, s3_client, s3_server, upload


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    for name in ("M", "N"):
        write_model(tmp_path / "remote", name)
    (tmp_path / "remote" / "README.md").write_text("no model")
    return tmp_path / "remote"


@pytest.fixture
def repository(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelRepository:
    monkeypatch.setattr(remote_source, "LISTING_AGE_S", -1.0)
    return ModelRepository([f"file://{remote}"], ReadOptions(cache=HostCache(str(tmp_path / "cache"))))


def fetched(cache: Path) -> set[str]:
    return {path.name.partition("-")[2] for path in cache.glob("*/*") if path.is_dir()}


def test_a_model_is_fetched_when_it_is_read(repository: ModelRepository, tmp_path: Path) -> None:
    assert repository.names() == ["M", "N"]
    assert fetched(tmp_path / "cache") == set()
    draft = repository.read("M")
    assert (draft.name, draft.versions, draft.complete("1").name) == ("M", ("1",), "M")
    assert (draft.folder / "1" / "model.py").exists()
    assert fetched(tmp_path / "cache") == {"M"}
    assert repository.read("M").folder == draft.folder
    with pytest.raises(RepositoryError, match="model not found in any model repository"):
        repository.read("O")


def test_a_change_goes_into_another_folder_so_that_what_is_served_stays(
    repository: ModelRepository, remote: Path
) -> None:
    before, stamps = repository.read("M"), repository.stamps()
    assert not changes_between(stamps, repository.stamps())
    (remote / "M" / "1" / "model.py").write_text("changed")
    assert changes_between(stamps, repository.stamps()) == RepositoryChanges(changed=("M",))
    after = repository.read("M")
    assert (before.folder / "1" / "model.py").read_text() == ""
    assert (after.folder / "1" / "model.py").read_text() == "changed"
    assert not after.keeps_version("1", before)


def test_a_local_model_of_the_same_name_makes_it_ambiguous(remote: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "local", "M")
    cache = HostCache(str(tmp_path / "cache"))
    repository = ModelRepository([f"file://{remote}", tmp_path / "local"], ReadOptions(cache=cache))
    assert repository.ambiguous() == ["M"]
    with pytest.raises(RepositoryError, match="not unique across all model repositories"):
        repository.read("M")


def test_a_source_that_does_not_answer_is_no_empty_repository(
    repository: ModelRepository, remote: Path, tmp_path: Path
) -> None:
    remote.rename(tmp_path / "gone")
    with pytest.raises(RepositoryError, match="failed to poll model repository: file://"):
        repository.stamps()
    with pytest.raises(RepositoryError, match=r"failed to poll model repository: .*No such file"):
        ModelRepository([remote]).names()


def scripted(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """A source of these files; the list grows by each listing."""
    listings: list[str] = []

    class Source:
        def __init__(self, url: WeightsUrl) -> None:
            self.url = url

        def listing(self) -> Listing:
            listings.append(str(self.url))
            return Listing(tuple(SourceFile(name, 1) for name in names))

    monkeypatch.setattr(remote_source, "open_source", Source)
    return listings


def test_one_listing_is_enough_for_the_models_of_a_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listings = scripted(monkeypatch, "M/1/model.py", "N/1/model.py", "README.md", ".cache/1/model.py")
    now = 0.0
    url = WeightsUrl("s3", "bucket/models")
    source = RemoteSource(url, HostCache(str(tmp_path)), clock=lambda: now)
    assert source.names() == list(source.stamps()) == ["M", "N"]
    assert source.folder_of("O") is None
    assert len(listings) == 1
    now = 10.0
    assert source.names() == ["M", "N"]
    assert len(listings) == 2


@pytest.mark.parametrize("name", ["M/../../evil", "/etc/passwd"])
def test_a_name_that_leads_out_of_the_cache_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    scripted(monkeypatch, name)
    with pytest.raises(SourceRefused, match="is no name of a file in the repository"):
        RemoteSource(WeightsUrl("s3", "bucket/models"), HostCache(str(tmp_path))).names()


def test_a_repository_lies_in_an_object_store(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as url:
        for name, value in {**ACCOUNT, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        client = s3_client(url)
        client.create_bucket(Bucket="models")
        upload(client, remote, "models", "team/repository")
        repository = ModelRepository(["s3://models/team/repository"], ReadOptions(cache=HostCache(str(tmp_path / "c"))))
        monkeypatch.setattr(remote_source, "LISTING_AGE_S", -1.0)
        before, stamps = repository.read("M"), repository.stamps()
        assert before.complete("1").inputs[0].name == "A"
        client.put_object(Bucket="models", Key="team/repository/M/1/model.py", Body=b"changed")
        assert changes_between(stamps, repository.stamps()).changed == ("M",)
        assert (repository.read("M").folder / "1" / "model.py").read_bytes() == b"changed"
        assert repository.names() == ["M", "N"]
