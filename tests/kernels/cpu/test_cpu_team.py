"""Threads that compute together: every tile once, phases in order, however many threads there are."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from slipstream.kernels.cpu.native_library import native_library

NUM_PHASES, NUM_TILES = 400, 23
NUM_TILES_OF = np.arange(NUM_PHASES) % (NUM_TILES + 1)
EXPECTED = (np.arange(NUM_TILES) < NUM_TILES_OF[:, None]).astype(np.int32)


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    found = native_library()
    if found is None:
        pytest.skip("no native kernels here")
    before = found.slipstream_num_threads()
    yield found
    found.slipstream_set_num_threads(before)


def count(library: ctypes.CDLL) -> set[int]:
    """Runs phases of 0, 1, 2 ... tiles and checks them. Returns the numbers of the threads that had a tile."""
    counts, threads = (np.zeros((NUM_PHASES, NUM_TILES), np.int32) for _ in range(2))
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (counts, threads)]
    assert library.slipstream_team_count(NUM_PHASES, NUM_TILES, *pointers) == 0
    np.testing.assert_array_equal(counts, EXPECTED)
    return set(threads[EXPECTED > 0].tolist())


def test_every_tile_runs_once_and_phases_in_order_while_threads_come_and_go(library: ctypes.CDLL) -> None:
    for num_threads in (1, 2, 3, 64, 7, 2, 1):
        library.slipstream_set_num_threads(num_threads)
        used = set.union(*(count(library) for _ in range(5)))
        assert used <= set(range(num_threads))
        assert 0 in used


@pytest.mark.parametrize("spin_ns", [0, 1_000_000])
def test_sleeping_at_once_and_spinning_long_lose_no_wake_up(library: ctypes.CDLL, spin_ns: int) -> None:
    library.slipstream_set_num_threads(4)
    library.slipstream_set_spin_ns(spin_ns)
    try:
        for _ in range(10):
            count(library)
    finally:
        library.slipstream_set_spin_ns(20_000)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_helpers_keep_off_the_core_of_the_caller(library: ctypes.CDLL) -> None:
    allowed = os.sched_getaffinity(0)
    library.slipstream_set_num_threads(3)
    count(library)  # helpers exist from here on
    try:
        for cpu in sorted(allowed)[:2]:
            os.sched_setaffinity(0, {cpu})
            count(library)
            os.sched_setaffinity(0, allowed)
            places: list[set[int]] = []
            deadline = time.monotonic() + 30
            while sum(len(allowed - place) == 1 for place in places) < 2:  # a helper may not have begun yet
                assert time.monotonic() < deadline, places
                count(library)
                places = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
    finally:
        os.sched_setaffinity(0, allowed)


def test_callers_on_several_threads_take_turns(library: ctypes.CDLL) -> None:
    library.slipstream_set_num_threads(2)
    failures: list[BaseException] = []

    def call() -> None:
        try:
            for _ in range(5):
                count(library)
        except AssertionError as error:
            failures.append(error)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures


# A program of its own: a thread cannot take its niceness back.
NICE_PROGRAM = """
import os
from tests.kernels.cpu.test_cpu_team import count
from slipstream.kernels.cpu.native_library import native_library
library = native_library()
before = {int(thread) for thread in os.listdir("/proc/self/task")}
library.slipstream_set_num_threads(2)
count(library)
library.slipstream_set_niceness(7)
library.slipstream_set_num_threads(3)
while True:  # a helper looks when it is woken, and is not needed for every work
    count(library)
    helpers = {int(thread) for thread in os.listdir("/proc/self/task")} - before
    nicenesses = [os.getpriority(os.PRIO_PROCESS, thread) for thread in helpers]
    if nicenesses == [7, 7]:
        break
assert os.getpriority(os.PRIO_PROCESS, 0) == 7
"""


def test_caller_and_helpers_old_and_new_stand_back(library: ctypes.CDLL) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NICE_PROGRAM],
        cwd=os.getcwd(),
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


# Neither calling thread ends before the program does: the kernel may still list a thread that has just been joined.
FORWARD_PROGRAM = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
from tests.kernels.cpu.test_cpu_team import count
from slipstream.kernels.cpu.native_library import native_library
library = native_library()
library.slipstream_set_num_threads(3)
threads = lambda: {int(thread) for thread in os.listdir("/proc/self/task")}
nice = lambda thread: os.getpriority(os.PRIO_PROCESS, thread)
back, other = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
for caller in (back, other):
    caller.submit(threading.get_native_id).result()
before = threads()

def compute(niceness):
    library.slipstream_set_niceness(niceness)
    for _ in range(5):
        count(library)

back.submit(compute, 7).result()
helpers = threads() - before
assert [nice(helper) for helper in helpers] == [7, 7], helpers
other.submit(compute, 0).result()
while threads() & helpers:  # asked to end, and awaited but for the last step in the kernel
    os.sched_yield()
assert [nice(helper) for helper in threads() - before] == [0, 0]
"""


def test_helpers_come_forward_again_with_a_thread_that_never_stood_back(library: ctypes.CDLL) -> None:
    """No thread may lower its own niceness: those that stood back have ended, and others have begun."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORWARD_PROGRAM],
        cwd=os.getcwd(),
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


PROGRAM = """
import os, sys
from tests.kernels.cpu.test_cpu_team import count
from slipstream.kernels.cpu.native_library import native_library
library = native_library()
library.slipstream_set_num_threads(3)
count(library)
child = os.fork()
count(library)  # in both: the child has no helpers but those it starts
if child:
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_work_goes_on_in_a_forked_child_and_both_end(library: ctypes.CDLL) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], cwd=os.getcwd(), timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
