"""A thread gets away from a core where another has nothing to do, and is as free afterwards as it was before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.kv_transfer.sockets import cpu_cores as cores
from slipstream.kv_transfer.sockets.cpu_cores import current_core, leave_core


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[set[int]]:
    """Where threads of this process are set to run: it is on core 1 of four, two of which are at work."""
    calls: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, some: calls.append(set(some)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(cores, "current_core", lambda: 1)
    monkeypatch.setattr(cores, "LOAD_FILE", tmp_path / "loadavg")
    (tmp_path / "loadavg").write_text("0.20 0.18 0.12 3/80 11206\n")
    return calls


def test_a_thread_leaves_the_core_that_it_is_on_and_keeps_its_freedom(moves: list[set[int]]) -> None:
    leave_core(2)
    assert moves == []
    leave_core(1)
    assert moves == [{0, 2, 3}, {0, 1, 2, 3}]


@pytest.mark.parametrize("load", ["9.20 8.18 1.12 5/80 11206\n", "nothing of the kind\n", None])
def test_a_thread_stays_where_cores_may_be_busy(moves: list[set[int]], load: str | None) -> None:
    if load is None:
        cores.LOAD_FILE.unlink()
    else:
        cores.LOAD_FILE.write_text(load)
    leave_core(1)
    assert moves == []


def test_a_thread_that_may_not_move_stays(moves: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, some: set[int]) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    leave_core(1)


def test_the_core_of_a_thread_is_one_that_it_may_run_on() -> None:
    assert current_core() in os.sched_getaffinity(0)
