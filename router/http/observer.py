"""Observers of a connection: they see every request and every byte of an answer before it takes effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)

READ_BUFFER_BYTES = 256 * 1024  # for one read


class AnswerPhase(IntEnum):
    """How far the exchange of a connection has come."""

    IDLE = 0  # none has begun, or only a part of its request is there
    RUNNING = 1  # nothing of the answer has been sent
    STREAMING = 2
    ENDED = 3  # all of the answer has been given to the socket
    CLOSING = 4  # all of it, and the connection is to be closed


class ConnectionObserver(Protocol[C_co]):
    """Follows one connection, on its event loop."""

    def read_buffer(self, *, into_body: bool = False) -> memoryview:
        """Memory for the next read, until the next call for any connection of this server; `into_body`: the next read
        will not use it."""

    def received(self, data: bytes | memoryview, is_ahead: bool) -> None:
        """The client has sent this; `is_ahead`: while a request before it waits or runs."""

    def begun(self) -> C_co:
        """A whole request is there. Returns the context of its exchange."""

    def sending(self, data: bytes | memoryview, phase: AnswerPhase) -> None:
        """`data` is given to the socket next, with which the exchange comes to `phase`; IDLE: it is a 100 Continue."""

    def ended(self, transport: asyncio.Transport, is_idle: bool) -> None:
        """An exchange is over and the connection stays open; `is_idle`: nothing of the next request has come."""

    def release(self) -> bool:
        """The connection has been idle for a while, with nothing unsent. Returns whether memory was given back."""

    def closed(self, handler: asyncio.Task[None] | None) -> None:
        """The connection is gone; `handler` is of its exchange, if that still runs."""


class NullObserver(Generic[C]):
    """Keeps nothing. One serves all connections of an event loop, because what a read has brought is copied before the
    next read begins."""

    def __init__(self, new_context: Callable[[], C]) -> None:
        self._buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        self._new_context = new_context

    def read_buffer(self, *, into_body: bool = False) -> memoryview:
        return self._buffer

    def received(self, data: bytes | memoryview, is_ahead: bool) -> None:
        pass

    def begun(self) -> C:
        return self._new_context()

    def sending(self, data: bytes | memoryview, phase: AnswerPhase) -> None:
        pass

    def ended(self, transport: asyncio.Transport, is_idle: bool) -> None:
        pass

    def release(self) -> bool:
        return False

    def closed(self, handler: asyncio.Task[None] | None) -> None:
        pass
