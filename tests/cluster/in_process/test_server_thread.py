"""The thread of a server within a program."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

import slipstream
from slipstream.cluster.in_process.running.server_thread import ServerThread

TIMEOUT_S = 20.0


async def nothing() -> None:
    """The last work."""


def started() -> ServerThread:
    thread = ServerThread(nothing)
    thread.start()
    return thread


def test_a_call_that_a_stop_cuts_off_says_so() -> None:
    thread = started()
    waits = threading.Event()

    async def work() -> None:
        waits.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(lambda: thread.wait(work()))
        assert waits.wait(TIMEOUT_S)
        thread.stop()
        with pytest.raises(slipstream.UnavailableError, match="the server has stopped"):
            call.result(TIMEOUT_S)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_child_that_was_forked_within_a_call_of_another_thread_can_stop() -> None:
    thread = started()
    with thread._changes, ThreadPoolExecutor(1) as pool:
        child = pool.submit(forked, thread).result(TIMEOUT_S)
    try:
        assert psutil.Process(child).wait(TIMEOUT_S) == 0
    finally:
        if psutil.pid_exists(child):
            os.kill(child, 9)
            os.waitpid(child, 0)
        thread.stop()


def forked(thread: ServerThread) -> int:
    child = os.fork()
    if not child:
        thread.stop()
        os._exit(0)
    return child
