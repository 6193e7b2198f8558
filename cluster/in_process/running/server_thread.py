"""The thread of a server within a program."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import uvloop

from slipstream.cluster.in_process.interface.errors import InvalidArgumentError, UnavailableError

T = TypeVar("T")
NOT_STARTED = "Server not started"
STOPPED = "the server has stopped"
RUNNING: WeakSet[ServerThread] = WeakSet()

log = logging.getLogger(__name__)


class OpenRequest(Protocol):
    """A request that somebody may wait for."""

    def abandon(self) -> None:
        """The server has ended. For its thread."""


class ServerThread:
    """An event loop in a thread, from `start` until `stop`, of which `last` is the last work. All other methods may be
    called by any thread but that one. The end of the interpreter stops it. `open_requests` is for the event loop; those
    that are left at the end are abandoned."""

    def __init__(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._last = last
        self._loop = uvloop.new_event_loop()
        self._pid = os.getpid()
        self._changes = threading.RLock()  # the garbage collector may stop it within any call
        self._accepts_calls = True
        self.open_requests: set[OpenRequest] = set()
        self._thread = threading.Thread(target=self._run, name="slipstream", daemon=True)

    def start(self) -> None:
        stop_with_interpreter()
        RUNNING.add(self)
        self._thread.start()

    @property
    def is_forked(self) -> bool:
        """This process is a forked child: it has not this thread, and locks may be held for ever."""
        return self._pid != os.getpid()

    def begin(self, callback: Callable[[], object]) -> None:
        """Runs `callback` soon, on the event loop. Raises InvalidArgumentError after `stop`, UnavailableError in a
        forked child."""
        if self.is_forked:
            raise UnavailableError(f"the server runs in process {self._pid}, of which this one is a fork")
        with self._changes:
            if not self._accepts_calls:
                raise InvalidArgumentError(NOT_STARTED)
            self._loop.call_soon_threadsafe(callback)

    def call(self, function: Callable[[], T]) -> T:
        """The result of a function that the event loop runs. Raises what it raises, and what `begin` raises."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self.begin(run)
        return future.result()

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result of a coroutine. Raises what it raises, what `begin` raises, TimeoutError, after which it goes on,
        and UnavailableError if the server stops first."""
        future: Future[T] = Future()
        try:
            self.begin(lambda: self._follow(work, future))
        except BaseException:
            work.close()
            raise
        try:
            return future.result(timeout_s)
        except CancelledError:
            raise UnavailableError(STOPPED) from None

    def stop(self) -> None:
        """Runs the last work, and ends the thread. Safe to call twice, and in a forked child. Raises what that work
        raises. The thread itself calls it if it drops the last reference to a server; then it ends soon."""
        if self.is_forked:
            return
        with self._changes:
            if not self._accepts_calls:
                return
            self._accepts_calls = False
        RUNNING.discard(self)
        ended: Future[None] = Future()
        self._loop.call_soon_threadsafe(lambda: self._follow(self._end(), ended))
        if threading.current_thread() is not self._thread:
            self._thread.join()
            ended.result()

    def _follow(self, work: Coroutine[Any, Any, T], future: Future[T]) -> None:
        """Runs a coroutine whose result goes to `future`."""

        def done(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                future.cancel()
                return
            error = task.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())

        self._loop.create_task(work).add_done_callback(done)

    async def _end(self) -> None:
        try:
            await self._last()
        finally:
            self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._cancel_rest())
            for request in list(self.open_requests):
                request.abandon()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _cancel_rest(self) -> None:
        """Calls that still wait for something."""
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def stop_all() -> None:
    for thread in list(RUNNING):
        try:
            thread.stop()
        except Exception:
            log.exception("a server could not be stopped")


@functools.cache
def stop_with_interpreter() -> None:
    """Has `stop_all` called when the main thread has ended, before the pools of threads refuse work, which `atexit` is
    too late for."""
    threading._register_atexit(stop_all)  # type: ignore[attr-defined]
