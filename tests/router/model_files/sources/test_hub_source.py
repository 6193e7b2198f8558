"""A hub that answers as the Hugging Face Hub does, read with `huggingface_hub`'s settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.router.model_files.cache import version_download
from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_files.cache.version_download import DownloadFailed
from slipstream.router.model_files.cache.version_plan import plan_version
from slipstream.router.model_files.sources.open_source import open_source
from slipstream.router.model_files.sources.weights_source import SourceRefused, SourceUnreachable
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from tests.support.router.hub_server import FileServer, HubRepository, hub

WEIGHTS = os.urandom(700_000)
FILES = {
    "config.json": b'{"a": 1}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": os.urandom(80_000),
    "additional_chat_templates/tool.jinja": b"{{ x }}",
    "pytorch_model.bin": b"x" * 1000,
    "README.md": b"# Hello",
}
SERVED = {name: content for name, content in FILES.items() if name not in ("pytorch_model.bin", "README.md")}


@pytest.fixture
def repository() -> HubRepository:
    found = HubRepository()
    found.commit(FILES)
    return found


@pytest.fixture
def server(repository: HubRepository, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(version_download, "FIRST_PAUSE_S", 0.0)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub({"org/demo": repository}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def fetch(folder: Path, address: str = "hf://org/demo") -> Path:
    url = WeightsUrl.parse(address)
    assert url is not None
    source = open_source(url)
    return HostCache(str(folder)).fetch(source, plan_version(source, None), lambda text: None)


def content_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_a_commit_is_fetched_without_what_is_not_read(
    server: FileServer, repository: HubRepository, tmp_path: Path
) -> None:
    directory = fetch(tmp_path)
    assert content_of(directory) == SERVED
    assert directory == tmp_path / "hf--org--demo" / repository.revisions["main"]
    assert not server.num_bytes["pytorch_model.bin"]


def test_a_branch_and_a_commit_can_be_asked_for(server: FileServer, repository: HubRepository, tmp_path: Path) -> None:
    first = repository.revisions["main"]
    second = repository.commit(FILES | {"config.json": b'{"a": 2}'}, "next")
    assert content_of(fetch(tmp_path, "hf://org/demo@next"))["config.json"] == b'{"a": 2}'
    assert content_of(fetch(tmp_path, f"hf://org/demo@{first}"))["config.json"] == b'{"a": 1}'
    assert sorted(path.name for path in (tmp_path / "hf--org--demo").iterdir() if path.is_dir()) == sorted(
        [first, second]
    )


def test_connections_that_break_are_continued_where_they_broke(server: FileServer, tmp_path: Path) -> None:
    server.faults.cuts = [200_000, 100_000, 70_000]
    assert content_of(fetch(tmp_path)) == SERVED
    assert server.num_bytes["model.safetensors"] == len(WEIGHTS)


def test_a_server_without_ranges_is_read_from_the_beginning(server: FileServer, tmp_path: Path) -> None:
    server.faults.cuts, server.faults.ignores_ranges = [200_000], True
    assert content_of(fetch(tmp_path)) == SERVED


def test_altered_files_are_found_by_the_hubs_hashes(server: FileServer, tmp_path: Path) -> None:
    server.faults.altered.update({"model.safetensors": 1})
    assert content_of(fetch(tmp_path / "one")) == SERVED
    for name, kind in (("model.safetensors", "sha256"), ("config.json", "git")):
        server.faults.altered.clear()
        server.faults.altered[name] = 2
        with pytest.raises(DownloadFailed, match=f"{name} has twice arrived with a wrong {kind} checksum"):
            fetch(tmp_path / name)


def test_what_the_user_has_in_the_cache_of_huggingface_hub_is_not_fetched_again(
    server: FileServer, repository: HubRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import hf_hub_download

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = repository.revisions["main"]
    path = Path(hf_hub_download("org/demo", "model.safetensors", revision=commit, endpoint=server.url))
    before = server.num_bytes["model.safetensors"]
    directory = fetch(tmp_path / "cache")
    assert content_of(directory) == SERVED
    assert server.num_bytes["model.safetensors"] == before == len(WEIGHTS)
    assert (directory / "model.safetensors").stat().st_ino == path.resolve().stat().st_ino


def test_without_the_hub_the_cache_of_huggingface_hub_is_read(
    server: FileServer, repository: HubRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import snapshot_download

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SourceUnreachable, match="HF_HUB_OFFLINE is set, and the cache of huggingface_hub does not"):
        fetch(tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    snapshot_download("org/demo", endpoint=server.url, ignore_patterns=["*.bin", "*.md"])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    server.requests.clear()
    directory = fetch(tmp_path / "cache")
    assert content_of(directory) == SERVED
    assert directory.name == repository.revisions["main"]
    assert not server.requests


def refusal(address: str = "hf://org/demo") -> str:
    url = WeightsUrl.parse(address)
    assert url is not None
    with pytest.raises(SourceRefused) as refused:
        plan_version(open_source(url), None)
    return str(refused.value)


def test_tokens_and_names_are_refused_in_a_sentence(
    server: FileServer, repository: HubRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal("hf://org/demo@nope") == "hf://org/demo@nope: the model has no revision 'nope'"
    repository.token = "hf_right"
    assert refusal() == "hf://org/demo: there is no such model, or it needs a token (HF_TOKEN or `hf auth login`)"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert refusal() == "hf://org/demo: the hub refuses the token, or there is no such model for its owner"
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert refusal("hf://org/none") == "hf://org/none: there is no such model"
    assert content_of(fetch(tmp_path)) == SERVED
    repository.is_gated = True
    assert "the model is gated" in refusal()


def test_a_token_does_not_leave_the_hub(
    server: FileServer, repository: HubRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers redirect to another host, as the hub's to its CDN do."""
    repository.token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert content_of(fetch(tmp_path)) == SERVED
    assert set(server.seen_tokens) == {None}


def test_a_hub_that_does_not_answer_is_a_sentence(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.faults.status = 503
    url = WeightsUrl("hf", "org/demo")
    with pytest.raises(SourceUnreachable, match="hf://org/demo: the hub answers 503"):
        plan_version(open_source(url), None)
    monkeypatch.setenv("HF_ENDPOINT", "http://localhost:9")
    with pytest.raises(SourceUnreachable, match=r"hf://org/demo: the hub does not answer: .*refused"):
        plan_version(open_source(url), None)


def test_a_revision_that_could_lead_out_of_the_cache_is_refused(
    server: FileServer, repository: HubRepository, tmp_path: Path
) -> None:
    repository.revisions["main"] = "../../elsewhere"
    repository.commits["../../elsewhere"] = FILES
    with pytest.raises(SourceRefused, match=r"does not say which commit this is, got '\.\./\.\./elsewhere'"):
        fetch(tmp_path / "a" / "cache")
    assert not (tmp_path / "elsewhere").exists()
