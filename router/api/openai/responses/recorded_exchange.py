"""An exchange without a connection, whose events go to a file."""

from __future__ import annotations

import asyncio

from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.api.generation.answer.pings import PING
from slipstream.router.api.held_exchange import HeldExchange
from slipstream.router.api.openai.responses.run_files import END_OF_EVENT, RunFiles
from slipstream.router.http.reader import Request
from slipstream.router.store.object_store import ObjectStore


class EventRecorder:
    """Appends events to the file of a response, off the event loop and many at a time where they come fast. It leaves
    out as many as are there from a process before."""

    def __init__(self, store: ObjectStore, files: RunFiles) -> None:
        self._store = store
        self._files = files
        self._num_known = files.num_events
        self._waiting = bytearray()
        self._writing: asyncio.Task[None] | None = None

    def add(self, data: bytes) -> None:
        """`data` are whole events."""
        if self._num_known:
            events = data.split(END_OF_EVENT)[:-1]
            num_known = min(self._num_known, len(events))
            self._num_known -= num_known
            data = END_OF_EVENT.join((*events[num_known:], b""))
        if data:
            self._waiting += data
            if self._writing is None or (self._writing.done() and self._writing.exception() is None):
                self._writing = asyncio.create_task(self._write())

    async def done(self) -> None:
        """All is in the file. Raises StoreError, from the first failure on each time: nothing is written behind it."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._waiting:  # also what is added meanwhile
            data = bytes(self._waiting)
            self._waiting.clear()
            await self._store.in_files("add_events", lambda: self._files.add_events(data))  # noqa: B023


class RecordedExchange(HeldExchange):
    """Its head is never sent, so what fails raises HttpError, also in the middle of a stream."""

    __slots__ = ("_recorder",)

    def __init__(self, request: Request, context: ExchangeContext, recorder: EventRecorder) -> None:
        super().__init__(request, context)
        self._recorder = recorder

    def write(self, data: bytes) -> None:
        if data != PING:
            self._recorder.add(data)
            self.congested = True

    async def drain(self) -> None:
        """Wait for the file: what comes meanwhile is gathered. Raises StoreError."""
        await self._recorder.done()
        self.congested = False

    def finish(self, data: bytes = b"") -> None:
        self._recorder.add(data)
        self.ended = True
