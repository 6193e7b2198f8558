"""The HTTP/1.1 server: listens, counts its connections, drains."""

from __future__ import annotations

import asyncio
import errno
import time
from email.utils import formatdate
from typing import Protocol

from slipstream.router.config import HttpConfig
from slipstream.router.http.connection import HttpConnection, Welcome
from slipstream.router.http.errors import HttpError
from slipstream.router.http.exchange import Exchange, Handler
from slipstream.router.http.reader import CheckCaller, Request
from slipstream.router.http.tls import ServerTls

BACKLOG = 2048
MAX_TURNED_AWAY = 64  # connections beyond the limit that still get an answer; further ones are cut off
HEALTH_PREFIX = "/health/"


class ConnectionCount(Protocol):
    """Adds up what several servers have, so that `max_connections` holds for all of them."""

    def set(self, num_connections: int) -> int:
        """So many has this one. Returns how many all have."""


class HttpServer:
    """Life cycle: `start`, then `drain` (optional), then `stop`. All on one event loop.

    `check_caller` is asked before a large body is taken. With `shares_port` other processes may listen on the same
    port, and the system divides new connections between them; `count` knows of theirs."""

    def __init__(
        self,
        config: HttpConfig,
        handler: Handler,
        *,
        check_caller: CheckCaller | None = None,
        shares_port: bool = False,
        count: ConnectionCount | None = None,
    ) -> None:
        self.check_caller = check_caller
        self._config = config
        self._handler = handler
        self._shares_port = shares_port
        self._count = count
        self._tls = ServerTls(config.tls) if config.tls.is_on else None
        self._server: asyncio.Server | None = None
        self._connections: set[HttpConnection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = False
        self._date = ""
        self._date_s = 0

    @property
    def draining(self) -> bool:
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

    async def start(self) -> int:
        """Listen. Returns the port, chosen by the system if the configured one is 0.

        Raises OSError with one clear sentence if the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        host, port = self._config.host, self._config.port
        context = self._tls.context if self._tls is not None else None
        handshake_s = self._config.header_timeout_s if context is not None else None
        try:
            self._server = await loop.create_server(
                lambda: HttpConnection(self._config, self._handler, self),
                host,
                port,
                backlog=BACKLOG,
                reuse_port=self._shares_port,
                ssl=context,
                ssl_handshake_timeout=handshake_s,
            )
        except OSError as error:
            why = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise OSError(error.errno, f"cannot listen for HTTP on {host}:{port}: {why}") from error
        chosen: int = self._server.sockets[0].getsockname()[1]
        return chosen

    async def drain(self, deadline_s: float) -> bool:
        """Stop accepting, let running responses end. True if all did within `deadline_s`."""
        self._draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close_when_idle()
        try:
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Cut what is left and wait until its handlers have ended."""
        self._draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await self._empty.wait()

    # ---- called by the connections

    def joined(self, connection: HttpConnection) -> Welcome:
        self._connections.add(connection)
        self._empty.clear()
        if self._tls is not None:
            self._tls.look(time.monotonic())
        num_surplus = self._tell_count() - self._config.max_connections
        return "served" if num_surplus <= 0 else "turned_away" if num_surplus <= MAX_TURNED_AWAY else "cut_off"

    async def turn_away(self, request: Request, exchange: Exchange) -> None:
        """The one request of a connection beyond the limit. Who only asks whether the router lives gets its answer."""
        exchange.keep_alive = False
        if request.path.startswith(HEALTH_PREFIX):
            await self._handler(request, exchange)
            return
        message = f"All {self._config.max_connections} connections are in use."
        raise HttpError(503, message, kind="server_error", code="too_many_connections", headers=(("retry-after", "1"),))

    def left(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        self._tell_count()
        if not self._connections:
            self._empty.set()

    def _tell_count(self) -> int:
        """Returns how many connections there are, here and at servers that share the limit."""
        num_own = len(self._connections)
        return num_own if self._count is None else self._count.set(num_own)
