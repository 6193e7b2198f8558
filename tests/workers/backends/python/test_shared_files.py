"""Other processes' shared memory as an instance reads it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.workers.backends.python.instance.memory import shared_files
from slipstream.workers.backends.python.instance.memory.shared_files import SharedFiles


@pytest.fixture
def path() -> Iterator[Path]:
    path = Path(f"/dev/shm/instance-test-{uuid.uuid4().hex}")
    path.write_bytes(b"before")
    yield path
    path.unlink()


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_bytes_stay_valid_while_another_thread_opens_files(path: Path) -> None:
    files = SharedFiles()
    view = files.bytes_at(path.name, 0, 6)
    num_open = num_open_files()
    path.unlink()
    path.write_bytes(b"after!")
    assert bytes(files.bytes_at(path.name, 0, 6)) == b"after!"
    assert bytes(view) == b"before"
    del view
    assert num_open_files() == num_open, "the file that went is closed"


def test_a_file_that_is_not_there_or_too_small_leaves_nothing_open(path: Path) -> None:
    files, num_open = SharedFiles(), num_open_files()
    for name, problem in ((f"{path.name}-not", OSError), (f"{path.name}-empty", ValueError)):
        if problem is ValueError:
            Path(f"/dev/shm/{name}").touch()
        with pytest.raises(problem):
            files.bytes_at(name, 0, 1)
    Path(f"/dev/shm/{path.name}-empty").unlink()
    assert num_open_files() == num_open


def test_only_so_many_files_stay_mapped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "MAX_FILES", 1)
    other = path.with_name(f"{path.name}-other")
    other.write_bytes(b"other")
    try:
        files, num_open = SharedFiles(), num_open_files()
        for _ in range(3):
            assert bytes(files.bytes_at(path.name, 0, 6)) == b"before"
            assert bytes(files.bytes_at(other.name, 0, 5)) == b"other"
        assert num_open_files() <= num_open + 2
    finally:
        other.unlink()
