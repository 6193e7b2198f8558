"""Calls of other models from an event loop, which reads the connection while no thread does."""

from __future__ import annotations

import asyncio
from typing import Any

from slipstream.workers.backends.python.instance.model_calls import OpenCall, OutgoingCalls, result_of
from slipstream.workers.backends.python.instance.wire.router_link import InstanceRouterLink


class LoopCalls:
    """Those of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: InstanceRouterLink, calls: OutgoingCalls) -> None:
        self._loop = loop
        self._link = link
        self._calls = calls
        self._waiting: set[int] = set()  # numbers of calls
        self._is_reading = False
        self._is_another_reading = False

    def future_of(self, call: OpenCall) -> asyncio.Future[Any]:
        """A future for the response of a call that has just begun."""
        future = self._loop.create_future()
        self._waiting.add(call.number)

        def finish() -> None:
            self._waiting.discard(call.number)
            if not self._waiting:
                self._stop_reading()
            if not future.done():
                future.set_result(result_of(call))

        call.when_over = lambda: self._call_soon(finish)
        if call.is_over:  # another thread has read the response before `when_over` was set, or just after
            self._call_soon(finish)
        else:
            self._read()
        return future

    def _call_soon(self, callback: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            """The loop is closed, and no task of it waits."""

    def _read(self) -> None:
        """Takes in what has come; then reads on when there is more, unless a thread reads or no task waits."""
        if not self._waiting:
            return
        self._link.poll()
        if self._link.is_lost:
            self._stop_reading()
            self._calls.fail_all()
            return
        if not self._is_another_reading:
            self._is_another_reading = self._link.call_when_reader_leaves(lambda: self._call_soon(self._reader_left))
        if self._is_another_reading:
            self._stop_reading()
        elif not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._link.fileno(), self._read)

    def _reader_left(self) -> None:
        self._is_another_reading = False
        self._read()

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._link.fileno())
