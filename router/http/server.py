"""The HTTP/1.1 server: listens, counts its connections, leaves, drains."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Generic, Protocol

from slipstream.router.config.router_config import HttpConfig
from slipstream.router.http.connection import HttpConnection
from slipstream.router.http.cors import CorsPolicy
from slipstream.router.http.exchange import Exchange, Handler
from slipstream.router.http.http_error import ErrorFormOf, HttpError, openai_form
from slipstream.router.http.large_body import BodyPlaces
from slipstream.router.http.observer import C, NullObserver
from slipstream.router.http.owner import Admittance, OwnedConnection
from slipstream.router.http.reader import CheckCaller, Request
from slipstream.router.http.tls import http_tls
from slipstream.router.process.listening import cannot_listen, close_all, listening_at

BACKLOG = 2048
LAST_WORDS_S = 1.0  # how long streams that are cut off have to send their error event
MAX_TURNED_AWAY = 64  # connections beyond the limit that still get an answer; further ones are cut off
HEALTH_PATHS = ("/health", "/ping", "/v2/health")  # and everything below them


class ConnectionCount(Protocol):
    """Adds up the connections of several servers, so that `max_connections` is one limit for all of them."""

    def set(self, num_connections: int) -> int:
        """This server has so many. Returns how many all of them have."""


class Acceptor(Protocol):
    """Accepts clients until it is closed."""

    def close(self) -> None: ...


class HttpServer(Generic[C]):
    """Life cycle: `start`, then `leave` and `drain` (optional), then `stop`. All on one event loop.

    `new_context` makes the context of each exchange. `check_caller` is asked before a large body is taken.
    `error_form_of` is for what is refused before the handler gets it. With
    `shares_port` other processes may listen on the same port, and the system divides new connections between them;
    `count` knows of theirs. Clients can also come by a `unix_socket` that listens. Large bodies arrive in
    `body_places`."""

    def __init__(
        self,
        config: HttpConfig,
        handler: Handler[C],
        new_context: Callable[[], C],
        *,
        check_caller: CheckCaller | None = None,
        error_form_of: ErrorFormOf = openai_form,
        shares_port: bool = False,
        count: ConnectionCount | None = None,
        unix_socket: socket.socket | None = None,
        body_places: BodyPlaces | None = None,
    ) -> None:
        self.check_caller = check_caller
        self.body_places = body_places
        self.error_form_of = error_form_of
        self.cors = CorsPolicy.of(config.cors_origins)
        self._config = config
        self._handler = handler
        self._observer = NullObserver(new_context)
        self._shares_port = shares_port
        self._count = count
        self._unix_socket = unix_socket
        self.tls = http_tls(config.tls) if config.tls.is_on else None
        self._watch: asyncio.Task[None] | None = None  # of the certificate
        self._acceptors: list[Acceptor] = []
        self._connections: set[OwnedConnection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._leaving = False
        self._draining = False
        self._date = ""
        self._date_s = 0

    @property
    def leaving(self) -> bool:
        """Connections are closed after the response that begins now."""
        return self._leaving

    @property
    def draining(self) -> bool:
        """No new connections are accepted."""
        return self._draining

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    @property
    def date(self) -> str:
        """The Date header's value, rendered at most once a second."""
        now_s = int(time.time())
        if now_s != self._date_s:
            self._date_s = now_s
            self._date = formatdate(now_s, usegmt=True)
        return self._date

    async def start(self, sockets: Sequence[socket.socket] = ()) -> int:
        """Listen at `sockets`, or else at the configured address, unless no clients are to come. Returns the port,
        chosen by the system if the configured one is 0.

        Raises OSError with one clear sentence if the address cannot be had.
        """
        if self._draining:
            close_all(sockets)  # clients that connect to them would wait in vain
            if self._unix_socket is not None:
                self._unix_socket.close()
            return self._config.port
        sockets = sockets or await self._open_sockets()
        for sock in sockets:
            self._acceptors.append(await self._accept_at(sock))
        if self._unix_socket is not None:
            loop = asyncio.get_running_loop()
            self._acceptors.append(await loop.create_unix_server(self._connection, sock=self._unix_socket))
        if self.tls is not None:
            self._watch = asyncio.create_task(self.tls.watch(), name="certificate")
        port: int = sockets[0].getsockname()[1]
        return port

    async def _open_sockets(self) -> Sequence[socket.socket]:
        host, port = self._config.host, self._config.port
        try:  # in a thread, because a name may have to be looked up
            return await asyncio.to_thread(listening_at, host, port, BACKLOG, reuse_port=self._shares_port)
        except OSError as error:
            raise cannot_listen(error, host, port) from error

    async def _accept_at(self, sock: socket.socket) -> Acceptor:
        context = self.tls.context if self.tls is not None else None
        return await asyncio.get_running_loop().create_server(
            self._connection,
            sock=sock,
            backlog=BACKLOG,
            ssl=context,
            ssl_handshake_timeout=self._config.header_timeout_s if context is not None else None,
        )

    def _connection(self) -> HttpConnection[C]:
        return HttpConnection(self._config, self._handler, self, self._observer)

    def leave(self) -> None:
        """Clients still come and are served, but each connection is closed after its next response, so that they come
        elsewhere next time."""
        self._leaving = True

    async def drain(self, deadline_s: float) -> bool:
        """Stop accepting, let running responses end. True if all did within `deadline_s`."""
        self.refuse_clients()
        for connection in list(self._connections):
            connection.close_when_idle()
        try:
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def refuse_clients(self) -> None:
        """No new ones from now on; before `start`: none at all."""
        self._leaving = self._draining = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for acceptor in self._acceptors:
            acceptor.close()

    async def stop(self) -> None:
        """Cut what is left and wait until its handlers have ended."""
        self.refuse_clients()
        for connection in list(self._connections):
            connection.abort()
        await self._empty.wait()

    def joined(self, connection: OwnedConnection) -> Admittance:
        self._connections.add(connection)
        self._empty.clear()
        num_surplus = self._tell_count() - self._config.max_connections
        return "served" if num_surplus <= 0 else "turned_away" if num_surplus <= MAX_TURNED_AWAY else "cut_off"

    async def turn_away(self, request: Request, exchange: Exchange[C]) -> None:
        """The one request of a connection beyond the limit. Health checks are answered, all others refused."""
        exchange.keep_alive = False
        if request.path.startswith(HEALTH_PATHS):
            await self._handler(request, exchange)
            return
        exchange.error_form = self.error_form_of(request.path)
        message = f"All {self._config.max_connections} connections are in use."
        raise HttpError(503, message, kind="server_error", code="too_many_connections", headers=(("retry-after", "1"),))

    def left(self, connection: OwnedConnection) -> None:
        self._connections.discard(connection)
        self._tell_count()
        if not self._connections:
            self._empty.set()

    def _tell_count(self) -> int:
        """Returns how many connections there are, here and at servers that share the limit."""
        num_own = len(self._connections)
        return num_own if self._count is None else self._count.set(num_own)
