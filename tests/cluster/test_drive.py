"""What a driver leaves for the next one of its guardian."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from slipstream.cluster import drive as drive_module
from slipstream.cluster import run_state
from slipstream.cluster.console import Console
from slipstream.cluster.drive import INTERRUPTED, drive, state_before
from slipstream.cluster.driver import Driver
from slipstream.cluster.driver_task import DriverTask
from slipstream.cluster.guard import Guard, Post
from slipstream.cluster.overrides import Overrides
from slipstream.cluster.run_state import ClusterState
from tests.cluster.test_cli import LOCAL

NAMED = Overrides(name="mine")


@pytest.fixture
def guards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[bool, Guard]]:
    """By whether there was a driver before: the guardian is the parent of this process, and links lead to nobody."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    ours = []
    made = {}
    for is_again in (False, True):
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.append(link)
        made[is_again] = Guard(Post(os.getppid(), theirs.detach(), None, is_again))
    yield made
    for guard in made.values():
        guard.close()
    for link in ours:
        link.close()


def task_of(guard: Guard, before: ClusterState | None, folder: Path) -> DriverTask:
    return DriverTask(guard, NAMED.load(LOCAL), LOCAL, NAMED, before, folder / "mine.json", timings=False)


@pytest.mark.parametrize(
    ("is_again", "has_served", "code", "is_left"),
    [
        (False, False, 1, False),  # the guardian ends as well
        (False, True, 1, True),
        (True, False, 1, True),
        (True, True, 1, True),
        (True, True, 0, False),  # told to end
        (True, False, INTERRUPTED, False),
    ],
)
def test_the_state_is_left_where_a_driver_that_was_not_told_to_end_may_be_followed_by_another(
    guards: dict[bool, Guard],
    monkeypatch: pytest.MonkeyPatch,
    is_again: bool,
    has_served: bool,
    code: int,
    is_left: bool,
) -> None:
    paths: list[Path] = []

    def serve(task: DriverTask, address: str | None) -> int:
        paths.append(task.state_path)
        task.state_path.write_text("{}")
        if has_served:
            task.guard.ready()
        return code

    monkeypatch.setattr(drive_module, "_serve", serve)
    monkeypatch.setattr(drive_module, "_end_when_told", lambda: None)  # handlers of signals are the test runner's
    assert drive(guards[is_again], LOCAL, name="mine", port=None, timings=False) == code
    assert [path.exists() for path in paths] == [is_left]


def test_a_driver_that_dies_before_it_knows_better_leaves_what_the_one_before_it_knew(
    guards: dict[bool, Guard],
) -> None:
    guard = guards[True]
    folder = run_state.run_folder()
    folder.mkdir()
    first = ClusterState("mine", guard.pid, guard.started, str(LOCAL), "m", url="http://127.0.0.1:1")
    first.admin_url, first.wanted, first.update = "http://127.0.0.1:2", {"prefill": 1, "decode": 3}, "updated"
    run_state.write(folder / "mine.json", first)
    before = state_before(guard, LOCAL, NAMED)
    assert before == first
    second = Driver(task_of(guard, before, folder), None, Console(StringIO()))
    second._state_file.write()
    left = state_before(guard, LOCAL, NAMED)
    assert left is not None
    assert left.driver == os.getpid()
    assert (left.url, left.admin_url) == (first.url, first.admin_url)
    assert (left.wanted, left.update) == (first.wanted, first.update)
