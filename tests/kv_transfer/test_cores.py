"""A thread gets away from a core, and is as free afterwards as it was before."""

from __future__ import annotations

import os

import pytest

from slipstream.kv_transfer.cores import current_core, leave_core


def test_a_thread_leaves_the_core_that_it_is_on_and_keeps_its_freedom() -> None:
    allowed = os.sched_getaffinity(0)
    core = current_core()
    assert core in allowed
    moves: list[set[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_setaffinity", lambda pid, cores: moves.append(set(cores)))
        patch.setattr("slipstream.kv_transfer.cores.current_core", lambda: core)
        leave_core(core)
        leave_core(core + 1)
    assert moves == ([allowed - {core}, allowed] if len(allowed) > 1 else [])
    leave_core(core)
    assert os.sched_getaffinity(0) == allowed


def test_a_thread_that_may_not_move_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, cores: set[int]) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr("slipstream.kv_transfer.cores.current_core", lambda: 1)
    leave_core(1)
