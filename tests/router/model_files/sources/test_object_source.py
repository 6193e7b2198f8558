"""Models in S3, as moto's server has them. (gcsfs and adlfs are read in the same way.)"""

from __future__ import annotations

import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from slipstream.router.model_files.cache import version_download
from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_files.cache.version_download import DownloadFailed
from slipstream.router.model_files.cache.version_plan import plan_version
from slipstream.router.model_files.sources import open_source as opening
from slipstream.router.model_files.sources.object_source import ObjectSource
from slipstream.router.model_files.sources.open_source import open_source
from slipstream.router.model_files.sources.weights_source import SourceError, SourceRefused, SourceUnreachable
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from tests.support.router.s3_server import ACCOUNT, s3_client, s3_server, upload

FILES = {"config.json": b"{}", "tokenizer.json": b"{ }", "model.safetensors": os.urandom(17 << 20)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With a model at s3://models/org/chat, whose weights were uploaded in parts."""
    model = tmp_path_factory.mktemp("model")
    for name, content in FILES.items():
        (model / name).write_bytes(content)
    with s3_server() as url:
        client = s3_client(url)
        client.create_bucket(Bucket="models")
        upload(client, model, "models", "org/chat")
        yield url


@pytest.fixture(autouse=True)
def client(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(version_download, "FIRST_PAUSE_S", 0.0)
    for name, value in {**ACCOUNT, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    return s3_client(server)


def fetch(address: str, cache: Path) -> dict[str, bytes]:
    source = source_of(address)
    directory = HostCache(str(cache)).fetch(source, plan_version(source, None), lambda text: None)
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.startswith(".")}


def source_of(address: str) -> ObjectSource:
    url = WeightsUrl.parse(address)
    assert url is not None
    source = open_source(url)
    assert isinstance(source, ObjectSource)
    return source


def test_a_folder_is_fetched_and_its_checksums_are_known(tmp_path: Path) -> None:
    assert fetch("s3://models/org/chat", tmp_path) == FILES
    source = source_of("s3://models/org/chat")
    kinds = {file.name: source.checksum(file) for file in source.listing().files}
    assert {name: found and found.kind for name, found in kinds.items()} == {
        "config.json": "md5",
        "tokenizer.json": "md5",
        "model.safetensors": "s3_multipart",
    }
    assert all(found is not None and found.matches(next(tmp_path.rglob(name))) for name, found in kinds.items())


def test_what_is_uploaded_over_it_is_another_version(client: Any, tmp_path: Path) -> None:
    for name, content in FILES.items():
        client.put_object(Bucket="models", Key=f"other/{name}", Body=content)
    before = plan_version(source_of("s3://models/other"), None)
    client.put_object(Bucket="models", Key="other/config.json", Body=b"[]")
    assert plan_version(source_of("s3://models/other"), None).version != before.version


def test_an_object_with_a_key_of_its_owner_has_no_checksum(client: Any) -> None:
    for name, how in (("config.json", {}), ("model.safetensors", {"ServerSideEncryption": "aws:kms"})):
        client.put_object(Bucket="models", Key=f"kms/{name}", Body=b"{}", **how)
    source = source_of("s3://models/kms")
    found = {file.name: source.checksum(file) for file in source.listing().files}
    assert found["config.json"] is not None
    assert found["model.safetensors"] is None


def test_altered_bytes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = ObjectSource._pieces

    def altered(self: ObjectSource, name: str, begin: int, end: int) -> Iterator[bytes]:
        return (piece[::-1] if name == "tokenizer.json" else piece for piece in pieces(self, name, begin, end))

    monkeypatch.setattr(ObjectSource, "_pieces", altered)
    with pytest.raises(DownloadFailed, match=r"tokenizer\.json has twice arrived with a wrong md5 checksum"):
        fetch("s3://models/org/chat", tmp_path)


def test_what_is_not_there_or_not_allowed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, words in (
        ("s3://none/chat", "s3://none/chat: the folder does not exist"),
        ("s3://models/none", "s3://models/none: there are no files"),
    ):
        with pytest.raises(SourceRefused, match=words):
            plan_version(source_of(address), None)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SourceRefused, match="s3://models/org/chat: NoCredentialsError: Unable to locate credentials"):
        plan_version(source_of("s3://models/org/chat"), None)


class BreakingProxy(socketserver.BaseRequestHandler):
    """Hands on to `server`, and ends its first connections after so many bytes of an answer as `cuts` says."""

    server_address: tuple[str, int]
    cuts: list[int]

    def handle(self) -> None:
        with socket.create_connection(self.server_address) as far:
            asking = threading.Thread(target=self._copy, args=(self.request, far, False))
            asking.start()
            self._copy(far, self.request, True)
            asking.join()

    def _copy(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        num_bytes = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                num_bytes += len(data)
                if is_answer and self.cuts and num_bytes > self.cuts[0]:
                    self.cuts.pop(0)
                    break
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def breaking(server: str, cuts: list[int]) -> Iterator[str]:
    host, _, port = server.removeprefix("http://").partition(":")
    handler = type("Bound", (BreakingProxy,), {"server_address": (host, int(port)), "cuts": cuts})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
        proxy.shutdown()
        thread.join()


def test_connections_that_break_are_continued(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = [3 << 20, 2 << 20]
    with breaking(server, cuts) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert fetch("s3://models/org/chat", tmp_path) == FILES
    assert not cuts


def test_a_store_that_does_not_answer_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    with pytest.raises(SourceUnreachable, match="s3://models/org/chat: EndpointConnectionError: Could not connect"):
        plan_version(source_of("s3://models/org/chat"), None)


def test_a_driver_that_is_not_installed_is_named() -> None:
    with pytest.raises(SourceError, match=r"gs://bucket/x: needs a package \(pip install 'slipstream\[gs\]'\)"):
        opening.open_source(WeightsUrl("gs", "bucket/x"))
