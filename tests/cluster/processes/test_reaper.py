"""Nothing outlives a driver that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from slipstream.cluster.processes import process_tree
from slipstream.cluster.processes.reaper import Reaper

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STRANGELY_NAMED = [
    *(sys.executable, "-c"),
    "import time; open('/proc/self/comm', 'w').write(') R 1 2 ('); print('up', flush=True); time.sleep(600)",
]

# A driver that starts one process below itself and one that is marked but detached, then waits to be killed.
DRIVER = f"""
import os, subprocess, sys, time
from pathlib import Path
from slipstream.cluster.processes import process_tree
from slipstream.cluster.processes.reaper import Reaper

reaper = Reaper("cluster-of-this-test")
children = []
for mark in ("", "cluster-of-this-test"):
    environment = {{**os.environ, process_tree.MARK: mark}}
    child = subprocess.Popen({SLEEP!r}, env=environment, stdout=subprocess.PIPE, start_new_session=True)
    child.stdout.readline()
    children.append(child)
    if not mark:
        reaper.watch(process_tree.descendants())
reaper.remove(Path(sys.argv[1]))
print(reaper.pid, *(child.pid for child in children), flush=True)
time.sleep(600)
"""


def test_a_killed_driver_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    (folder / "file").touch()
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    line = driver.stdout.readline()
    left = [psutil.Process(int(pid)) for pid in line.split()]
    try:
        assert len(left) == 3
        driver.kill()
        driver.wait()
        _, alive = psutil.wait_procs(left, timeout=20)
        assert not alive
        assert not folder.exists()
    finally:
        driver.stdout.close()
        process_tree.wait_or_kill(left, 0)


def test_a_reaper_leaves_alone_what_is_none_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, process_tree.MARK: "another"}
    stranger = subprocess.Popen(SLEEP, env=environment, stdout=subprocess.PIPE)
    assert stranger.stdout is not None
    try:
        stranger.stdout.readline()
        reaper = Reaper("mine")
        reaper.close()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()


def test_closing_ends_the_reaper() -> None:
    reaper = Reaper("no-cluster")
    process = psutil.Process(reaper.pid)
    reaper.close()
    assert not process.is_running()


def test_a_pid_that_is_used_again_is_not_the_process_of_before() -> None:
    started = process_tree.start_time(os.getpid())
    assert started is not None
    assert process_tree.is_running(os.getpid(), started)
    assert not process_tree.is_running(os.getpid(), started - 1.0)


def test_a_process_that_ends_by_itself_is_not_killed() -> None:
    child = psutil.Popen([sys.executable, "-c", "pass"])
    assert process_tree.wait_or_kill([child], 20.0) == []
    assert child.wait() == 0


def test_a_process_that_has_ended_is_not_waited_for_until_its_parent_looks_after_it() -> None:
    # The child is referred to: a Popen without a reference is waited for by Python itself, if it has ended by then.
    careless = "import subprocess, time; it = subprocess.Popen(['true']); print(it.pid, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", careless], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child = psutil.Process(int(parent.stdout.readline()))
            assert process_tree.wait_or_kill([child], 20.0) == []
            assert child.status() == psutil.STATUS_ZOMBIE
        finally:
            parent.kill()


def test_a_process_is_still_the_same_when_the_clock_of_the_day_has_been_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(STRANGELY_NAMED, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        own_started, started = process_tree.start_time(os.getpid()), process_tree.start_time(child.pid)
        assert own_started is not None
        assert started is not None
        assert started >= own_started
        before = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: before + 3600.0)
        assert process_tree.is_running(child.pid, started)
        assert not process_tree.is_running(child.pid, started - 1.0)
        child.kill()


@pytest.mark.parametrize("patience_s", [0.0, 0.2])
def test_a_process_that_does_not_end_is_killed_and_named(patience_s: float) -> None:
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        killed = process_tree.wait_or_kill([psutil.Process(child.pid)], patience_s)
        assert [process.pid for process in killed] == [child.pid]
        assert process_tree.start_time(child.pid) is None
