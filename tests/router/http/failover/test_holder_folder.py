"""Folders of socket holders, and what is done with those that were left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.router.http.failover.holder.holder_folder import NEW_S, PREFIX, HolderFolder, clear_left_behind

KILLED = """
import os, signal
from slipstream.router.http.failover.holder.holder_folder import HolderFolder
print(HolderFolder().path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # else it would remember another one
    return tmp_path


def age(folder: Path) -> None:
    then_s = time.time() - NEW_S - 1.0
    os.utime(folder, (then_s, then_s))


def test_the_folder_of_a_socket_holder_that_was_killed_goes_when_the_next_one_begins(parent: Path) -> None:
    left = Path(subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True).stdout.strip())
    assert left.parent == parent
    age(left)
    folder = HolderFolder()
    assert [*parent.iterdir()] == [folder.path]
    folder.remove()
    folder.remove()
    assert [*parent.iterdir()] == []


def test_the_folder_of_a_socket_holder_that_lives_stays(parent: Path) -> None:
    folder = HolderFolder()
    age(folder.path)
    clear_left_behind(parent)
    assert folder.path.exists()
    folder.remove()


def test_what_is_new_or_has_another_name_or_is_a_link_stays(parent: Path) -> None:
    new, other, target = parent / f"{PREFIX}new", parent / "other", parent / "target"
    for folder in (new, other, target):
        folder.mkdir()
    link = parent / f"{PREFIX}link"
    link.symlink_to(target)
    age(other)
    os.utime(link, (0.0, 0.0), follow_symlinks=False)
    clear_left_behind(parent)
    assert sorted(parent.iterdir()) == sorted([new, other, target, link])
