"""The cache of a host: resumed, verified, atomic, shared, bounded."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import shutil
import time
from pathlib import Path

import pytest

from slipstream.router.model_files.cache import cache_room, version_download
from slipstream.router.model_files.cache.cache_room import IN_USE_FILE, RECENT_S
from slipstream.router.model_files.cache.host_cache import HostCache, in_use
from slipstream.router.model_files.cache.version_download import DownloadFailed, VersionDownload
from slipstream.router.model_files.cache.version_plan import plan_version
from slipstream.router.model_files.model_origin import ModelOrigin
from slipstream.router.model_files.sources.directory_source import DirectorySource
from slipstream.router.model_files.sources.weights_source import SourceUnreachable
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from tests.support.router.model_sources import MemorySource

WEIGHTS = os.urandom(200_000)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "tokenizer.json": b"{ }"}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_download, "FIRST_PAUSE_S", 0.0)


def fetch(cache: HostCache, source: MemorySource) -> Path:
    return cache.fetch(source, plan_version(source, None), lambda text: None)


def content_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.startswith(".")}


def leave_alone(directory: Path, for_s: float) -> None:
    """As if a version had not been used for so long."""
    then = time.time() - for_s
    os.utime(directory / IN_USE_FILE, (then, then))


def test_a_version_is_there_whole_with_its_origin_and_fetched_once(tmp_path: Path) -> None:
    cache, source = HostCache(str(tmp_path), max_gib=2.5), MemorySource(FILES)
    directory = fetch(cache, source)
    assert content_of(directory) == FILES
    assert directory.parent == tmp_path / "s3--bucket--model"
    assert ModelOrigin.read(directory) == ModelOrigin("s3://bucket/model", directory.name, "", str(tmp_path), 2.5)
    before = source.num_bytes
    assert fetch(cache, source) == directory
    assert source.num_bytes == before
    assert [path.name for path in directory.parent.iterdir() if path.is_dir()] == [directory.name]


def test_a_broken_connection_is_continued_where_it_broke(tmp_path: Path) -> None:
    source = MemorySource(FILES, cuts=[50_000, 0, 70_000])
    directory = fetch(HostCache(str(tmp_path)), source)
    assert content_of(directory) == FILES
    assert source.num_bytes == sum(map(len, FILES.values()))


def test_another_process_continues_what_a_killed_one_has_left(tmp_path: Path) -> None:
    cache, source = HostCache(str(tmp_path)), MemorySource(FILES, cuts=[120_000] + [0] * 20)
    with pytest.raises(SourceUnreachable, match=r"s3://bucket/model: .*: the connection broke"):
        fetch(cache, source)
    plan = plan_version(source, None)
    assert cache.find(plan) is None
    source = MemorySource(FILES)
    assert content_of(fetch(cache, source)) == FILES
    assert source.num_bytes <= sum(map(len, FILES.values())) - 100_000


def test_a_wrong_checksum_is_tried_again_and_then_refused(tmp_path: Path) -> None:
    cache = HostCache(str(tmp_path))
    assert content_of(fetch(cache, MemorySource(FILES, wrong={"model.safetensors": 1}))) == FILES
    altered = FILES | {"model.safetensors": os.urandom(5000)}
    source = MemorySource(altered, wrong={"model.safetensors": 9})
    with pytest.raises(DownloadFailed, match=r"model\.safetensors has twice arrived with a wrong sha256 checksum"):
        fetch(cache, source)
    assert cache.find(plan_version(source, None)) is None
    assert not list(tmp_path.rglob("model.safetensors.incomplete"))


def test_a_sums_file_is_verified_where_the_source_has_no_checksums(tmp_path: Path) -> None:
    wrong = f"{'0' * 64}  model.safetensors\n".encode()
    source = MemorySource(FILES | {"SHA256SUMS": wrong}, has_checksums=False)
    with pytest.raises(DownloadFailed, match="wrong sha256"):
        fetch(HostCache(str(tmp_path)), source)


def test_a_file_of_another_size_than_listed_is_refused(tmp_path: Path) -> None:
    source = MemorySource(FILES)
    plan = plan_version(source, None)
    source.files = FILES | {"model.safetensors": WEIGHTS[:-5000]}
    with pytest.raises(SourceUnreachable, match=r"model\.safetensors ended after 195000 bytes of 200000"):
        HostCache(str(tmp_path)).fetch(source, plan, lambda text: None)


def test_a_copy_of_another_program_is_linked_and_verified(tmp_path: Path) -> None:
    copy = tmp_path / "hub-blob"
    copy.write_bytes(WEIGHTS)
    source = MemorySource(FILES, copies={"model.safetensors": copy})
    directory = fetch(HostCache(str(tmp_path / "cache")), source)
    assert (directory / "model.safetensors").stat().st_ino == copy.stat().st_ino
    assert source.num_bytes < 100
    copy = tmp_path / "short-blob"
    copy.write_bytes(WEIGHTS[:1000])
    source.copies = {"model.safetensors": copy}
    assert content_of(fetch(HostCache(str(tmp_path / "other")), source)) == FILES
    assert copy.read_bytes() == WEIGHTS[:1000]


def test_files_that_were_removed_are_fetched_again_and_only_those(tmp_path: Path) -> None:
    cache, source = HostCache(str(tmp_path)), MemorySource(FILES)
    directory = fetch(cache, source)
    (directory / "tokenizer.json").unlink()
    source.num_bytes = 0
    assert content_of(fetch(cache, source)) == FILES
    assert source.num_bytes == len(FILES["tokenizer.json"])
    with (directory / "model.safetensors").open("r+b") as file:
        file.truncate(150_000)
    source.num_bytes = 0
    assert content_of(fetch(cache, source)) == FILES
    assert source.num_bytes == 50_000
    (directory / "model.safetensors").write_bytes(bytes(10))
    assert content_of(fetch(cache, source)) == FILES


def numbered(number: int) -> MemorySource:
    return MemorySource({"config.json": b"{}", "model.safetensors": bytes([number]) * 300_000})


def test_the_least_recently_used_versions_go_first_and_not_those_in_use(tmp_path: Path) -> None:
    cache = HostCache(str(tmp_path), max_gib=1_000_000 / 2**30)  # three versions
    first, second, third = (fetch(cache, numbered(n)) for n in (1, 2, 3))
    for age, directory in enumerate((third, second, first), start=1):
        leave_alone(directory, age * 2 * RECENT_S)
    with in_use(first) as is_there:
        assert is_there
        leave_alone(first, 8 * RECENT_S)
        fourth = fetch(cache, numbered(4))
        assert [path.exists() for path in (first, second, third, fourth)] == [True, False, True, True]
        # The fourth is not used so far, but a process is about to.
        fifth = fetch(cache, numbered(5))
        assert [path.exists() for path in (first, third, fourth, fifth)] == [True, False, True, True]
        with pytest.raises(DownloadFailed, match=r"s3://bucket/model: needs 0\.3 MiB, and model_cache\.max_gib leaves"):
            fetch(cache, numbered(6))
    fetch(cache, numbered(6))
    assert not first.exists()


def test_a_version_that_is_gone_is_not_in_use(tmp_path: Path) -> None:
    with in_use(tmp_path / "gone") as is_there:
        assert not is_there


def test_a_disk_without_room_is_one_sentence_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MemorySource(FILES)
    plan = plan_version(source, None)
    monkeypatch.setattr(cache_room.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 100_000))
    with pytest.raises(DownloadFailed, match=rf"needs 0\.2 MiB, and the disk of {tmp_path} \(model_cache\.path\) has"):
        HostCache(str(tmp_path)).fetch(source, plan, lambda text: None)
    assert source.num_bytes == 0


def fetch_with_little_room(folder: str, said: multiprocessing.Queue[str]) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        fetch(HostCache(folder), MemorySource(FILES))
    except DownloadFailed as error:
        said.put(str(error))


def test_a_disk_that_fills_up_meanwhile_is_one_sentence_and_left_with_room(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    said: multiprocessing.Queue[str] = context.Queue()
    process = context.Process(target=fetch_with_little_room, args=(str(tmp_path), said))
    process.start()
    text = said.get(timeout=60)
    process.join()
    assert text == f"s3://bucket/model: cannot be kept in {tmp_path}/s3--bucket--model: {os.strerror(errno.EFBIG)}"
    assert not list(tmp_path.rglob("model.safetensors*"))


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadFailed, match=r"cannot be kept in model_cache\.path: .*: Not a directory"):
        fetch(HostCache(str(tmp_path / "file" / "models")), MemorySource(FILES))


class SlowDirectory(DirectorySource):
    """Notes who reads the weights."""

    def stream(self, file, begin, end):  # type: ignore[no-untyped-def]
        if file.name == "model.safetensors":
            with (Path(self.url.location).parent / "readers").open("a") as readers:
                readers.write(f"{os.getpid()}\n")
            time.sleep(0.5)
        return super().stream(file, begin, end)


def fetch_slowly(model: str, cache: str, shown: multiprocessing.Queue[tuple[str, bool]]) -> None:
    source, texts = SlowDirectory(WeightsUrl("file", model)), []
    directory = HostCache(cache).fetch(source, plan_version(source, None), texts.append)
    shown.put((str(directory), any("by another process" in text for text in texts)))


def test_of_two_processes_one_downloads_and_the_other_waits(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name, content in FILES.items():
        (model / name).write_bytes(content)
    context = multiprocessing.get_context("spawn")
    shown: multiprocessing.Queue[tuple[str, bool]] = context.Queue()
    processes = [
        context.Process(target=fetch_slowly, args=(str(model), str(tmp_path / "cache"), shown)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    found = [shown.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert len({directory for directory, _ in found}) == 1
    assert content_of(Path(found[0][0])) == FILES
    assert len((tmp_path / "readers").read_text().splitlines()) == 1


def test_an_error_that_is_not_foreseen_ends_the_download_and_leaves_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MemorySource(FILES)
    monkeypatch.setattr(VersionDownload, "_receive", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fetch(HostCache(str(tmp_path)), source)
    assert HostCache(str(tmp_path)).find(plan_version(source, None)) is None
