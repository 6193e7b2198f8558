"""Checksums as the sources give them."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from slipstream.router.model_files.sources.checksum import MIB, Checksum, ChecksumKind
from slipstream.router.model_files.sources.sums_file import read_sums

CONTENT = bytes(range(256)) * 9000  # 2.2 MiB, of no whole number of pieces


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def git_id(path: Path) -> str:
    return subprocess.run(["git", "hash-object", path], check=True, capture_output=True, text=True).stdout.strip()


def test_a_file_matches_its_checksum_and_no_other(path: Path) -> None:
    kinds: dict[ChecksumKind, str] = {
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "md5": hashlib.md5(CONTENT).hexdigest(),
        "git_sha1": git_id(path),
    }
    for kind, value in kinds.items():
        assert Checksum(kind, value).matches(path) is True
    with path.open("r+b") as file:
        file.write(b"x")
    for kind, value in kinds.items():
        assert Checksum(kind, value).matches(path) is False


def parts_etag(content: bytes, size: int) -> str:
    parts = [hashlib.md5(content[at : at + size]).digest() for at in range(0, len(content), size)]
    return f"{hashlib.md5(b''.join(parts)).hexdigest()}-{len(parts)}"


@pytest.mark.parametrize("size", [5 * MIB, 8 * MIB])
def test_an_object_of_several_parts_matches_if_the_parts_have_a_usual_size(tmp_path: Path, size: int) -> None:
    path, content = tmp_path / "file", CONTENT * 5  # 11 MiB
    path.write_bytes(content)
    assert Checksum("s3_multipart", parts_etag(content, size)).matches(path) is True
    assert Checksum("s3_multipart", parts_etag(content, 6 * MIB)).matches(path) is None


def test_a_sums_file_is_read_as_sha256sum_writes_it(path: Path) -> None:
    written = subprocess.run(["sha256sum", "file"], cwd=path.parent, check=True, capture_output=True).stdout
    assert read_sums(written + b"# a comment\n") == {"file": hashlib.sha256(CONTENT).hexdigest()}
