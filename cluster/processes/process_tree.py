"""Finds and ends the processes of a cluster on this machine, and only those.

There are two ways to find them, because neither finds all. One is the process tree below the driver, which breaks when
a parent dies and its children are handed to init. The other is a mark in the environment that every process inherits,
but which a process loses if it overwrites its environment with its title (as Ray's agents do).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

MARK = "SLIPSTREAM_CLUSTER_ID"
STARTTIME = 22 - 3  # proc_pid_stat(5) counts from 1, and the process's name, which may contain anything, is the second


def start_time(pid: int) -> float | None:
    """When a process started, in seconds since the kernel did; None if there is no such process. As pids are reused,
    only pid and start time together identify a process. (psutil's `create_time` is by the clock of the day. After that
    has been set, every process would seem to be another one.)"""
    try:
        if not _lives(psutil.Process(pid)):
            return None
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except (psutil.Error, OSError):
        return None
    return int(fields[STARTTIME]) / os.sysconf("SC_CLK_TCK")


def is_running(pid: int, started: float) -> bool:
    """Whether `pid` is the very process that started at that time (to the clock tick, about 10 ms)."""
    now = start_time(pid)
    return now is not None and abs(now - started) < 0.05


def wait_until_gone(pid: int, started: float, patience_s: float) -> bool:
    """Waits for the end of a process that is not our child. (The kernel does not notify us, so this polls.) Returns
    whether it ended in time; `inf` waits for ever."""
    deadline_s = time.monotonic() + patience_s
    while is_running(pid, started):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def descendants() -> list[psutil.Process]:
    """All processes below this one."""
    return children(psutil.Process())


def own_children() -> list[psutil.Process]:
    """The children of this process, those that have ended but were not collected among them."""
    return psutil.Process().children()


def children(process: psutil.Process) -> list[psutil.Process]:
    """All processes below another one, which may have ended."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def marked(cluster_id: str) -> list[psutil.Process]:
    """All processes that carry a cluster's mark, except this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == cluster_id:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or another user's
    return found


def wait_or_kill(processes: Iterable[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """Waits until all have ended; kills those that have not after `patience_s` seconds and returns them."""
    killed = []
    for process in _still_there_after(patience_s, processes):
        try:
            process.kill()  # safe even if the pid was reused, because psutil compares start times first
            killed.append(process)
        except psutil.NoSuchProcess:
            continue
    _still_there_after(5.0, killed)
    return killed


def _still_there_after(patience_s: float, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Waits for all to end, for `patience_s` seconds at most. Returns those that have not."""
    deadline_s = time.monotonic() + patience_s
    alive = [process for process in processes if _lives(process)]
    while alive and time.monotonic() < deadline_s:
        time.sleep(0.01)
        alive = [process for process in alive if _lives(process)]
    return alive


def _lives(process: psutil.Process) -> bool:
    """Whether a process still lives. A zombie has ended, because when its parent will collect it is not up to us.
    (psutil's own wait considers it alive.) But a zombie that still has other threads has not: they hold its memory and
    its ports."""
    try:
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False
