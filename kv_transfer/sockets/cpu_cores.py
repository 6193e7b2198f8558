"""Which core a thread runs on, and how it gets away from one.

A thread that is woken is often put on the core of the thread that wakes it: in a virtual machine, the kernel mistakes a
sleeping core for one that the host has taken away. The two ends of a transfer then take turns on one core, beside an
idle one, for up to a time slice of the scheduler, which is 3 ms. A whole transfer of 32 MiB takes 5 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path

LOAD_FILE = Path("/proc/loadavg")


def current_core() -> int | None:
    """The core that this thread runs on; None if the C library cannot tell."""
    core = _ask()()
    return None if core < 0 else core


@functools.cache
def _ask() -> Callable[[], int]:
    try:
        ask: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return lambda: -1
    return ask


def leave_core(core: int) -> None:
    """Move this thread off the given core, if it is on it, is allowed to move, and some other core is idle. It may come
    back later."""
    if current_core() != core or not _is_core_idle():
        return
    with contextlib.suppress(OSError):  # cores come and go, and moving may be forbidden: then the thread stays
        allowed = os.sched_getaffinity(0)
        if others := allowed - {core}:
            os.sched_setaffinity(0, others)
            os.sched_setaffinity(0, allowed)


def _is_core_idle() -> bool:
    """Whether some core must be idle: no more threads want to run than there are cores, and this one shares its
    core."""
    try:
        num_running = int(_read_load().split()[3].split(b"/")[0])
    except (OSError, ValueError, IndexError):
        return False
    return num_running <= (os.cpu_count() or 1)


def _read_load() -> bytes:
    """Without a file object: the first pages of a transfer wait for this."""
    file = os.open(LOAD_FILE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 128)
    finally:
        os.close(file)
