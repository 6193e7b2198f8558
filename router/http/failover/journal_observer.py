"""Notes in a journal what goes in and out on a connection, and leaves the connection to the next router."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Generic

from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.held_connection import HeldConnection
from slipstream.router.http.failover.journal import Journal, UnfinishedAnswer
from slipstream.router.http.failover.receive_buffer import NOT_HELD, ReceiveBuffer
from slipstream.router.http.failover.stream_checkpoint import NO_CHECKPOINT, JournalCheckpoint, StreamCheckpoint
from slipstream.router.http.observer import AnswerPhase, C


class JournalObserver(Generic[C]):
    """A `ConnectionObserver`. `held` is None while the connection would end with this process. `before` is what the
    previous router had noted of the exchange that begins first."""

    __slots__ = ("_before", "_failover", "_journal", "_new_context", "_number", "_receive_buffer")

    def __init__(
        self,
        failover: FailoverSession,
        receive_buffer: ReceiveBuffer,
        new_context: Callable[[StreamCheckpoint], C],
        held: HeldConnection | None,
        before: UnfinishedAnswer | None = None,
    ) -> None:
        self._failover = failover
        self._receive_buffer = receive_buffer
        self._new_context = new_context
        self._before = before
        self._number = NOT_HELD
        self._journal: Journal | None = None
        self._keep(held)

    def _keep(self, held: HeldConnection | None) -> None:
        if held is not None:
            self._number, self._journal = held.number, held.journal

    def read_buffer(self, *, into_body: bool = False) -> memoryview:
        return self._receive_buffer.room_for(NOT_HELD if into_body else self._number)

    def received(self, data: bytes | memoryview, is_ahead: bool) -> None:
        if self._journal is not None:
            self._journal.received(data)
            if is_ahead:
                self._journal.spoil()  # it does not tell where one request ends and the next one begins

    def begun(self) -> C:
        if self._journal is None:
            return self._new_context(NO_CHECKPOINT)
        self._journal.begun()
        before, self._before = self._before, None
        return self._new_context(JournalCheckpoint(self._journal, before))

    def sending(self, data: bytes | memoryview, phase: AnswerPhase) -> None:
        if self._journal is None:
            return
        if phase:  # past IDLE
            self._journal.sent(data, phase)
        else:
            self._journal.continued(data)

    def ended(self, transport: asyncio.Transport, is_idle: bool) -> None:
        """Clears the journal between two requests. A connection that could not be held before, or that the holder has
        lost, may be held from now on."""
        if not is_idle:
            if self._journal is not None:
                self._journal.spoil()  # it tells of this request as well as of the next one
            return
        if self._journal is not None:
            self._journal.rest()
            if self._failover.has(self._number):
                return
        if transport.get_write_buffer_size():
            return
        self.closed(None)
        with suppress(OSError):  # the connection is broken, which the transport will tell
            self._keep(self._failover.keep_from_now_on(transport.get_extra_info("socket")))

    def release(self) -> bool:
        if self._journal is None:
            return False
        self._journal.release()
        return True

    def closed(self, handler: asyncio.Task[None] | None) -> None:
        number, journal = self._number, self._journal
        self._number, self._journal = NOT_HELD, None
        if journal is None:
            return
        self._failover.forget(number)
        if handler is None:
            journal.close()
        else:
            handler.add_done_callback(lambda _: journal.close())  # until then it may note
