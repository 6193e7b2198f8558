"""How long a client connection may stay as it is: what it waits for must come in time, what it sends must be read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal, Protocol

from slipstream.router.config.router_config import HttpConfig

RELEASE_AFTER_S = 5.0  # of rest the memory of what a connection was about is given back
LINGER_S = 2.0  # how long a refused client may go on sending before it is cut off
TURNED_AWAY_S = 2.0  # how long a client beyond the limit of connections may take to ask

Awaited = Literal["header", "body", "idle"]


class TimedConnection(Protocol):
    """The connection, as its timers see it."""

    @property
    def unsent_bytes(self) -> int: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def read_timed_out(self, what: str) -> None: ...
    def release_memory(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How long the connection may wait for each part of a request, and for the next one."""

    header_s: float
    body_s: float
    idle_s: float

    @classmethod
    def of(cls, config: HttpConfig) -> ReadLimits:
        return cls(config.header_timeout_s, config.body_timeout_s, config.keep_alive_s)


class ConnectionTimers:
    """One timer for what is read, one for what is sent, and one between two requests. That one is not set anew for each
    request, but looks what the time is when it goes off."""

    __slots__ = ("_awaited", "_connection", "_has_released", "_idle", "_idle_since_s", "_limits", "_loop", "_read",
                 "_unsent_bytes", "_write", "_write_timeout_s")  # fmt: skip

    def __init__(self, connection: TimedConnection, config: HttpConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._write_timeout_s = config.write_timeout_s
        self._limits = ReadLimits.of(config)
        self._awaited: tuple[Awaited, int] | None = None
        self._read: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._idle_since_s = 0.0  # of the loop's clock
        self._has_released = False  # its memory, since the last request
        self._write: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0

    def wait_for(self, what: Awaited | None, number: int) -> None:
        """The connection waits for this now, of the request, or the part of one, with that number. A repeated call
        changes nothing."""
        awaited = None if what is None else (what, number)
        if awaited == self._awaited:
            return
        self.stop_waiting()
        self._awaited = awaited
        if what == "header":
            self._read = self._loop.call_later(self._limits.header_s, self._read_timed_out, "headers")
        elif what == "body":
            self._read = self._loop.call_later(self._limits.body_s, self._read_timed_out, "body")
        elif what == "idle":
            self._idle_since_s = self._loop.time()
            if self._has_released and self._idle is not None:
                self._idle.cancel()
                self._idle = None
            if self._idle is None:
                self._has_released = False
                self._idle = self._loop.call_later(min(RELEASE_AFTER_S, self._limits.idle_s), self._check_idle)

    def hurry(self) -> None:
        """Shortens all limits, because the client is only turned away."""
        self._limits = ReadLimits(TURNED_AWAY_S, TURNED_AWAY_S, TURNED_AWAY_S)

    def linger(self) -> None:
        """A refused client is still sending: it is cut off in a while."""
        self.stop_waiting()
        self._read = self._loop.call_later(LINGER_S, self._connection.close)

    def stop_waiting(self) -> None:
        self._awaited = None
        if self._read is not None:
            self._read.cancel()
            self._read = None

    def _read_timed_out(self, what: str) -> None:
        self._read = None
        self._connection.read_timed_out(what)

    def _check_idle(self) -> None:
        self._idle = None
        if self._awaited is None or self._awaited[0] != "idle":
            return
        idle_s, next_s = self._loop.time() - self._idle_since_s, self._limits.idle_s
        if idle_s >= next_s:
            self._connection.close()
            return
        if idle_s < RELEASE_AFTER_S:
            next_s = min(RELEASE_AFTER_S, next_s)
        else:
            self._has_released = self._connection.release_memory()
        self._idle = self._loop.call_later(next_s - idle_s, self._check_idle)

    @property
    def holds_writes(self) -> bool:
        """Whether the client has to read before more is sent."""
        return self._write is not None

    def watch_writes(self) -> None:
        """Too much is unsent."""
        if self._write is None:
            self._look_at_writes_later()

    def end_watching_writes(self) -> None:
        """The client has read enough."""
        if self._write is not None:
            self._write.cancel()
            self._write = None

    def _look_at_writes_later(self) -> None:
        self._unsent_bytes = self._connection.unsent_bytes
        self._write = self._loop.call_later(self._write_timeout_s, self._check_writes)

    def _check_writes(self) -> None:
        """A client that has read nothing at all for `write_timeout_s` is gone; a slow one is not."""
        if self._connection.unsent_bytes < self._unsent_bytes:
            self._look_at_writes_later()
        else:
            self._connection.abort()

    def stop(self) -> None:
        """The connection is over."""
        self.stop_waiting()
        for timer in (self._idle, self._write):
            if timer is not None:
                timer.cancel()
        self._idle = self._write = None
