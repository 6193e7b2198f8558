"""A folder of a web server with a certificate of its own."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipstream.router.model_files.cache import version_download
from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_files.cache.version_download import DownloadFailed
from slipstream.router.model_files.cache.version_plan import plan_version
from slipstream.router.model_files.sources.open_source import open_source
from slipstream.router.model_files.sources.weights_source import SourceRefused, SourceUnreachable
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from tests.support.router.hub_server import FileServer, https_folder, own_certificate

INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "model.safetensors.index.json": INDEX,
    "model-1.safetensors": os.urandom(400_000),
    "model-2.safetensors": os.urandom(200_000),
}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return own_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def trusted(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(version_download, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setenv("HOME", str(tmp_path))


@contextmanager
def folder(
    certificate: tuple[Path, Path], files: dict[str, bytes] = FILES, login: str | None = None
) -> Iterator[tuple[FileServer, WeightsUrl]]:
    with https_folder({f"models/chat/{name}": content for name, content in files.items()}, *certificate, login) as at:
        yield at, WeightsUrl("https", f"{at.url.removeprefix('https://')}/models/chat")


def fetch(url: WeightsUrl, cache: Path) -> dict[str, bytes]:
    source = open_source(url)
    directory = HostCache(str(cache)).fetch(source, plan_version(source, None), lambda text: None)
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.startswith(".")}


@pytest.mark.usefixtures("trusted")
def test_the_files_that_are_there_are_found_and_fetched(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    with folder(certificate) as (_, url):
        assert fetch(url, tmp_path / "cache") == FILES


@pytest.mark.usefixtures("trusted")
def test_connections_that_break_are_continued(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    with folder(certificate) as (server, url):
        server.faults.cuts = [100_000, 80_000, 70_000]
        assert fetch(url, tmp_path / "cache") == FILES
        assert sum(server.num_bytes[name] for name in FILES if name.startswith("model-")) == 600_000


@pytest.mark.usefixtures("trusted")
def test_the_digests_of_a_sums_file_count(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items()]
    with folder(certificate, FILES | {"SHA256SUMS": "".join(lines).encode()}) as (server, url):
        server.faults.altered["model-1.safetensors"] = 1
        assert fetch(url, tmp_path / "one") == FILES
        server.faults.altered["model-1.safetensors"] = 2
        with pytest.raises(DownloadFailed, match="wrong sha256"):
            fetch(url, tmp_path / "two")


def test_a_certificate_that_is_not_trusted_is_refused_in_a_sentence(certificate: tuple[Path, Path]) -> None:
    with folder(certificate) as (_, url), pytest.raises(SourceUnreachable, match=f"{url}: .*certificate verify failed"):
        plan_version(open_source(url), None)


@pytest.mark.usefixtures("trusted")
def test_a_password_comes_from_netrc(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    login = "Basic " + base64.b64encode(b"me:secret").decode()
    with folder(certificate, login=login) as (_, url):
        with pytest.raises(SourceRefused, match=r"the server refuses access \(~/\.netrc has no password for it\)"):
            plan_version(open_source(url), None)
        netrc = tmp_path / ".netrc"
        netrc.write_text("machine localhost login me password secret\n")
        netrc.chmod(0o600)
        assert fetch(url, tmp_path / "cache") == FILES


@pytest.mark.usefixtures("trusted")
def test_a_redirection_is_followed_unless_it_leaves_encryption(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    with folder(certificate) as (server, _):
        for address, is_followed in ((server.url, True), (server.url.replace("https", "http"), False)):
            with https_folder({}, *certificate, redirects_to=address) as other:
                url = WeightsUrl("https", f"{other.url.removeprefix('https://')}/models/chat")
                if is_followed:
                    assert fetch(url, tmp_path / "cache") == FILES
                else:
                    with pytest.raises(
                        SourceRefused, match=r"the server redirects to http://.*, which is not https://"
                    ):
                        plan_version(open_source(url), None)


@pytest.mark.usefixtures("trusted")
def test_what_is_not_there_is_a_sentence(certificate: tuple[Path, Path]) -> None:
    with folder(certificate) as (server, url):
        other = WeightsUrl("https", url.location.replace("chat", "none"))
        with pytest.raises(SourceRefused, match=f"{other}: there is no config.json"):
            plan_version(open_source(other), None)
        server.faults.status = 500
        with pytest.raises(SourceUnreachable, match=f"{url}: the server answers 500 for "):
            plan_version(open_source(url), None)
    with pytest.raises(SourceUnreachable, match=f"{url}: .* cannot be read: .*refused"):
        plan_version(open_source(url), None)
