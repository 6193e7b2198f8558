"""Reads the state of the cluster once a period, for all who follow it, and only while somebody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from slipstream.router.api.ui.live_state import LiveState

PERIOD_S = 1.0

# Returns the entries as JSON texts by key. Raises HttpError if they are not to be had.
ReadEntries = Callable[[], Awaitable[Mapping[str, bytes]]]


class LiveFeed:
    """`followed` counts readers; the first one begins the readings, the last one ends them."""

    def __init__(self, read: ReadEntries, period_s: float = PERIOD_S) -> None:
        self._read = read
        self._period_s = period_s
        self._task: asyncio.Task[None] | None = None
        self._tick: asyncio.Future[None] | None = None  # done with the next reading
        self.state = LiveState()
        self.num_readers = 0
        self.num_readings = 0

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """While a reader follows. Raises HttpError if there is nothing to be read."""
        self.num_readers += 1
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._run(), name="live-feed")
            if not self.state.number:
                await self.next_reading()
            yield
        finally:
            self.num_readers -= 1
            if self.num_readers == 0 and self._task is not None:
                self._task.cancel()
                self._forget()

    async def next_reading(self) -> None:
        """Until the next reading, of which nothing may be new. Raises HttpError if it failed."""
        if self._tick is None:
            self._tick = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._tick)

    async def _run(self) -> None:
        try:
            while True:
                self.state.advance(await self._read())
                self.num_readings += 1
                tick, self._tick = self._tick, None
                if tick is not None:
                    tick.set_result(None)
                await asyncio.sleep(self._period_s)
        except Exception as error:  # every reader gets it as its own
            tick = self._tick
            self._forget()
            if tick is not None:
                tick.set_exception(error)

    def _forget(self) -> None:
        """The next reader begins anew."""
        self._task = self._tick = None
        self.state = LiveState()
