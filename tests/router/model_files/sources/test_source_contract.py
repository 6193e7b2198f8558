"""What the cache relies on in every source."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from slipstream.router.model_files.sources.open_source import open_source
from slipstream.router.model_files.sources.weights_source import SourceFile, SourceRefused, WeightsSource, read_range
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from tests.support.router.hub_server import HubRepository, https_folder, hub, own_certificate

FILES = {"config.json": b"{}", "model.safetensors": os.urandom(300_000)}
KINDS = ("hf", "https", "file")


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightsSource]:
    with ExitStack() as stack:
        makers: dict[str, Callable[[], WeightsUrl]] = {
            "hf": lambda: on_hub(stack, monkeypatch),
            "https": lambda: on_web(stack, monkeypatch, tmp_path),
            "file": lambda: in_directory(tmp_path),
        }
        yield open_source(makers[request.param]())


def on_hub(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> WeightsUrl:
    repository = HubRepository()
    repository.commit(FILES)
    monkeypatch.setenv("HF_ENDPOINT", stack.enter_context(hub({"org/demo": repository})).url)
    return WeightsUrl("hf", "org/demo")


def on_web(stack: ExitStack, monkeypatch: pytest.MonkeyPatch, folder: Path) -> WeightsUrl:
    cert, key = own_certificate(folder)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    server = stack.enter_context(https_folder({f"chat/{name}": content for name, content in FILES.items()}, cert, key))
    return WeightsUrl("https", f"{server.url.removeprefix('https://')}/chat")


def in_directory(folder: Path) -> WeightsUrl:
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return WeightsUrl("file", str(folder))


def weights_of(source: WeightsSource) -> SourceFile:
    return next(file for file in source.listing().files if file.name == "model.safetensors")


def test_sizes_and_ranges_are_those_of_the_content(source: WeightsSource) -> None:
    file = weights_of(source)
    assert file.num_bytes == 300_000
    for begin, end in ((0, 300_000), (0, 10), (100_000, 300_000), (299_999, 300_000)):
        assert read_range(source, file, begin, end) == FILES["model.safetensors"][begin:end]


def test_an_error_of_the_reader_is_not_taken_for_one_of_the_source(source: WeightsSource) -> None:
    file = weights_of(source)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read_and_fail() -> None:
        with source.stream(file, 0, 300_000) as pieces:
            next(pieces)
            raise full

    with pytest.raises(OSError, match="No space left") as raised:
        read_and_fail()
    assert raised.value is full


def test_a_file_that_is_not_there_is_refused(source: WeightsSource) -> None:
    source.listing()
    with pytest.raises(SourceRefused, match=str(source.url)):
        read_range(source, SourceFile("gone.safetensors", 10), 0, 10)
