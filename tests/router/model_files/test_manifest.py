"""What belongs to a version of a model, and every way in which files can become others."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.router.model_files import file_digest
from slipstream.router.model_files.file_digest import DigestCache, FileDigest, FilesChanged, FileStamp, read_digest
from slipstream.router.model_files.manifest import INDEX, NAMES, Manifest, ManifestFile, served_files
from slipstream.router.text.conversion import FILES as CONVERTED

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
FILES = {
    "config.json": b'{"vocab_size": 10}',
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    INDEX: json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode(),
    SHARDS[0]: bytes(1000),
    SHARDS[1]: bytes(range(250)) * 4,
}
OTHERS = {"README.md": b"#", "training.json": b"{}", "consolidated.safetensors": b"?", "pytorch_model.bin": b"?"}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in {**FILES, **OTHERS}.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DigestCache:
    """A file is as good as old at once."""
    monkeypatch.setattr(file_digest, "SETTLED_S", 0.0)
    return DigestCache(tmp_path / "digests")


def settle(folder: Path) -> None:
    """Returns at the next tick of the clock that stamps files."""
    tick = folder / "tick"
    tick.touch()
    before = tick.stat().st_ctime_ns
    while tick.stat().st_ctime_ns == before:
        tick.touch()


def overwrite_a_byte(model_dir: Path, name: str = SHARDS[1]) -> None:
    """In its middle, with size and mtime as before."""
    path = model_dir / name
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(stat.st_size // 2)
        file.write(b"\xff")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def exchange(model_dir: Path) -> None:
    """Another file of the same size and time takes its place."""
    path = model_dir / SHARDS[0]
    stat = path.stat()
    other = model_dir / "other"
    other.write_bytes(b"\1" * stat.st_size)
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(path)


def cut_off(model_dir: Path) -> None:
    os.truncate(model_dir / SHARDS[0], 999)


def remove(model_dir: Path) -> None:
    (model_dir / "tokenizer.json").unlink()


def add_a_template(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages }}")


def add_a_named_template(model_dir: Path) -> None:
    (model_dir / "additional_chat_templates").mkdir()
    (model_dir / "additional_chat_templates" / "tools.jinja").write_text("{{ messages }}")


def add_a_whole_file(model_dir: Path) -> None:
    (model_dir / "model.safetensors").write_bytes(b"?")


def name_other_shards(model_dir: Path) -> None:
    (model_dir / INDEX).write_text(json.dumps({"weight_map": {"a": SHARDS[1], "b": SHARDS[0]}}))


def remove_all(model_dir: Path) -> None:
    shutil.rmtree(model_dir)


def rename_another_folder(model_dir: Path) -> None:
    model_dir.rename(model_dir.parent / "old")
    shutil.copytree(model_dir.parent / "old", model_dir)
    overwrite_a_byte(model_dir)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (overwrite_a_byte, f"{SHARDS[1]} has other content now \\(1000 bytes, written "),
        (exchange, f"{SHARDS[0]} has other content now"),
        (cut_off, f"{SHARDS[0]} has other content now \\(999 bytes"),
        (remove, "tokenizer.json is gone"),
        (add_a_template, "chat_template.jinja has been added"),
        (add_a_named_template, "additional_chat_templates/tools.jinja has been added"),
        (add_a_whole_file, "model.safetensors has been added"),
        (name_other_shards, f"{INDEX} has other content now"),
        (remove_all, "/model is gone"),
        (rename_another_folder, f"{SHARDS[1]} has other content now"),
    ],
)
def test_every_change_is_noticed_with_the_file(
    change: Callable[[Path], None], sentence: str, model_dir: Path, cache: DigestCache
) -> None:
    manifest = Manifest.read(model_dir, cache)
    settle(model_dir)
    change(model_dir)
    with pytest.raises(FilesChanged, match=sentence):
        manifest.verify(model_dir, cache)
    with pytest.raises(FilesChanged, match=sentence):
        manifest.verify(model_dir, DigestCache(None))
    if model_dir.exists():
        assert Manifest.read(model_dir, cache).digest != manifest.digest


def touch(model_dir: Path) -> None:
    for path in model_dir.iterdir():
        path.touch()


def copy_all(model_dir: Path) -> None:
    model_dir.rename(model_dir.parent / "old")
    shutil.copytree(model_dir.parent / "old", model_dir)


def change_what_does_not_matter(model_dir: Path) -> None:
    for name in OTHERS:
        (model_dir / name).write_bytes(b"others")
    (model_dir / "adapter.safetensors").write_bytes(b"?")


def link_to_blobs(model_dir: Path) -> None:
    """As the cache of huggingface_hub does."""
    blobs = model_dir.parent / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(model_dir.iterdir())):
        path.rename(blobs / str(number))
        path.symlink_to(f"../blobs/{number}")


@pytest.mark.parametrize("change", [touch, copy_all, change_what_does_not_matter, link_to_blobs])
def test_the_same_content_is_the_same_version(
    change: Callable[[Path], None], model_dir: Path, cache: DigestCache
) -> None:
    manifest = Manifest.read(model_dir, cache)
    change(model_dir)
    assert manifest.verify(model_dir, cache).keys() == FILES.keys()
    assert Manifest.read(model_dir, cache, is_fresh=True).digest == manifest.digest


def test_a_symbolic_link_that_is_switched_is_followed(tmp_path: Path, model_dir: Path, cache: DigestCache) -> None:
    """As Kubernetes switches `..data` of a mounted volume, and people the folder of the latest checkpoint."""
    shutil.copytree(model_dir, tmp_path / "second")
    overwrite_a_byte(tmp_path / "second")
    latest, following = tmp_path / "latest", tmp_path / "following"
    latest.symlink_to("model")
    manifest = Manifest.read(latest, cache)
    assert manifest.difference(latest, cache) is None
    following.symlink_to("second")
    following.rename(latest)
    assert "has other content now" in (manifest.difference(latest, cache) or "")


def test_what_is_known_is_not_read_again_but_if_that_is_asked_for(
    model_dir: Path, cache: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counting(path: Path) -> FileDigest:
        read.append(path.name)
        return read_digest(path)

    monkeypatch.setattr(file_digest, "read_digest", counting)
    settle(model_dir)
    manifest = Manifest.read(model_dir, cache)
    assert sorted(read) == sorted(FILES)
    assert cache._directory is not None
    assert Manifest.read(model_dir, DigestCache(cache._directory)) == manifest
    manifest.verify(model_dir, DigestCache(None))
    assert len(read) == len(FILES)
    Manifest.read(model_dir, cache, is_fresh=True)
    assert len(read) == 2 * len(FILES)


def test_a_file_that_was_just_written_is_read_again(model_dir: Path, tmp_path: Path) -> None:
    """Its next content may have the same stamp."""
    (model_dir / "config.json").write_bytes(b"{}")
    cache = DigestCache(tmp_path / "digests")
    assert not cache.digest_of(model_dir / "config.json").is_settled
    assert not list(tmp_path.glob("digests/*"))


def spoil(line: str) -> str:
    return line.replace(line[10], "x", 1)


@pytest.mark.parametrize("change", [spoil, lambda line: line[:-3], lambda line: ""])
def test_a_damaged_entry_of_the_cache_is_not_used(
    change: Callable[[str], str], model_dir: Path, tmp_path: Path, cache: DigestCache
) -> None:
    settle(model_dir)
    found = cache.digest_of(model_dir / "config.json")
    (entry,) = tmp_path.glob("digests/*.digest")
    entry.write_text(change(entry.read_text()))
    again = DigestCache(tmp_path / "digests").digest_of(model_dir / "config.json")
    assert again.digest == found.digest


def test_a_cache_that_cannot_be_written_is_no_error(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    manifest = Manifest.read(model_dir, DigestCache(tmp_path / "file" / "digests"))
    assert manifest.verify(model_dir, DigestCache(tmp_path / "file")).keys() == FILES.keys()


def test_a_folder_that_cannot_be_read_is_said(
    model_dir: Path, cache: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest.read(model_dir, cache)

    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", denied)
    assert manifest.difference(model_dir, cache) == f"{model_dir} cannot be read: Permission denied"


def test_an_index_that_cannot_be_read_names_nothing(model_dir: Path) -> None:
    for content in (b"{", b"[]", b"{}", b'{"weight_map": {"a": 1, "b": "../../etc/passwd"}}'):
        (model_dir / INDEX).write_bytes(content)
        assert not set(SHARDS) & set(served_files(model_dir))


def test_whatever_a_tokenizer_may_be_made_of_belongs_to_a_version() -> None:
    assert set(NAMES) >= set(CONVERTED)


STAMP = FileStamp(1, 2, 3, 4, 5)
contents = st.dictionaries(st.text(min_size=1, max_size=3), st.sampled_from(["0" * 32, "1" * 32]), max_size=3)


@given(one=contents, other=contents)
def test_digests_are_the_same_for_the_same_files_and_no_others(one: dict[str, str], other: dict[str, str]) -> None:
    def manifest(files: dict[str, str]) -> Manifest:
        return Manifest(tuple(ManifestFile(n, FileDigest(d, STAMP, True)) for n, d in sorted(files.items())))

    assert (manifest(one).digest == manifest(other).digest) == (one == other)
