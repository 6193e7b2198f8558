"""Accepts clients in such a way that the socket holder has them at once.

An event loop's own server accepts a connection first and reports it a turn later. A router that is killed in between
would cut that client off.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable

from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.held_connection import HeldConnection

log = logging.getLogger(__name__)

MAX_AT_ONCE = 16  # clients that are accepted before other things get their turn
OUT_OF_FILES_PAUSE_S = 0.5
HOLDER_PAUSE_S = 0.005  # while the holder is busy
MAX_PAUSES = 200  # of these in a row; then clients are served that are not held

# Gets a connection; None: it is not held.
Serve = Callable[[socket.socket, HeldConnection | None], Awaitable[object]]


class HeldListener:
    """Accepts at one listening socket, on the running loop, until it is closed."""

    def __init__(self, sock: socket.socket, failover: FailoverSession, serve: Serve) -> None:
        self._sock = sock
        self._failover = failover
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Future[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._num_pauses = 0
        sock.setblocking(False)
        failover.prepare(MAX_AT_ONCE)
        self._loop.add_reader(sock, self._accept)

    @property
    def sock(self) -> socket.socket:
        return self._sock

    def close(self) -> None:
        """Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()

    def _accept(self) -> None:
        self._accept_some()
        self._failover.prepare(MAX_AT_ONCE)

    def _accept_some(self) -> None:
        for _ in range(MAX_AT_ONCE):
            if not self._failover.has_room and self._num_pauses < MAX_PAUSES:
                self._num_pauses += 1
                self._wait(HOLDER_PAUSE_S)
                return
            self._num_pauses = 0
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.warning("no client can be accepted: %s", error)
                self._wait(OUT_OF_FILES_PAUSE_S)
                return
            task = asyncio.ensure_future(self._serve(sock, self._failover.keep(sock)))
            self._tasks.add(task)
            task.add_done_callback(self._served)

    def _wait(self, pause_s: float) -> None:
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock, self._accept)

    def _served(self, task: asyncio.Future[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a client was gone before it was served: %s", error)
