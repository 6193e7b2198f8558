"""What stays in memory of files of packed weights."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest

from slipstream.workers.models.weights.recent_weights import keep_recent
from slipstream.workers.models.weights.weight_cache import HEADER_BYTES, Bytes, cached

NUM_BYTES = 1 << 20
FILE_BYTES = HEADER_BYTES + NUM_BYTES


def written(directory: Path, number: int) -> Bytes:
    def fill(contents: Bytes) -> None:
        contents[:] = number

    contents = cached(directory, bytes([number]) * 32, NUM_BYTES, fill)
    opened_s = time.time() - 60 + number
    os.utime(path_of(directory, number), (opened_s, opened_s))
    return contents


def path_of(directory: Path, number: int) -> Path:
    return directory / f"{(bytes([number]) * 32).hex()}.{os.geteuid()}.weights"


def share_in_memory(path: Path) -> float:
    """Of a file's pages, according to the kernel (mincore(2))."""
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    resident = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
    assert (
        ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), resident) == 0
    )
    return float(np.mean(np.frombuffer(resident, np.uint8) & 1))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of three files of the same size, of which 3 was opened last."""
    for number in (1, 2, 3):
        written(tmp_path, number)
    if share_in_memory(path_of(tmp_path, 1)) < 1:
        pytest.skip("the kernel has no memory to spare")
    return tmp_path


def test_files_that_were_opened_longest_ago_leave_memory_first(directory: Path) -> None:
    keep_recent(directory, 2 * FILE_BYTES)
    shares = [share_in_memory(path_of(directory, number)) for number in (1, 2, 3)]
    if shares[0] == 1:
        pytest.skip("files here are always in memory")
    assert shares == [0, 1, 1]


def test_what_a_worker_has_mapped_stays_and_what_has_left_is_read_again(directory: Path) -> None:
    used = written(directory, 2)
    assert used.sum() == 2 * NUM_BYTES  # it has been read, so it is mapped
    keep_recent(directory, 0)
    assert share_in_memory(path_of(directory, 2)) > 0.9
    assert written(directory, 1).sum() == NUM_BYTES


def test_a_directory_that_is_not_there_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep_recent(tmp_path / "absent", 0)
    assert "cannot be bounded" in caplog.text
