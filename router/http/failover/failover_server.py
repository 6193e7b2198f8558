"""An HTTP server that goes on with the connections of the previous router, and leaves its own to the next one."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Callable, Sequence

from slipstream.router.config.router_config import HttpConfig
from slipstream.router.http.connection import HttpConnection
from slipstream.router.http.exchange import Handler
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.held_connection import HeldConnection
from slipstream.router.http.failover.held_listener import HeldListener
from slipstream.router.http.failover.journal_observer import JournalObserver
from slipstream.router.http.failover.receive_buffer import ReceiveBuffer
from slipstream.router.http.failover.stream_checkpoint import NO_CHECKPOINT, StreamCheckpoint
from slipstream.router.http.http_error import ErrorFormOf, openai_form
from slipstream.router.http.large_body import BodyPlaces
from slipstream.router.http.observer import C
from slipstream.router.http.reader import CheckCaller
from slipstream.router.http.restored_connection import RestoredConnection
from slipstream.router.http.server import Acceptor, ConnectionCount, HttpServer

log = logging.getLogger(__name__)


class FailoverServer(HttpServer[C]):
    """It listens where the previous router did. Connections with TLS or by the Unix socket end with this process."""

    def __init__(
        self,
        config: HttpConfig,
        handler: Handler[C],
        new_context: Callable[[StreamCheckpoint], C],
        failover: FailoverSession,
        *,
        check_caller: CheckCaller | None = None,
        error_form_of: ErrorFormOf = openai_form,
        shares_port: bool = False,
        count: ConnectionCount | None = None,
        unix_socket: socket.socket | None = None,
        body_places: BodyPlaces | None = None,
    ) -> None:
        super().__init__(
            config,
            handler,
            lambda: new_context(NO_CHECKPOINT),
            check_caller=check_caller,
            error_form_of=error_form_of,
            shares_port=shares_port,
            count=count,
            unix_socket=unix_socket,
            body_places=body_places,
        )
        self._failover = failover
        self._observe = functools.partial(
            JournalObserver, failover, failover.receive_buffer or ReceiveBuffer(), new_context
        )

    async def start(self, sockets: Sequence[socket.socket] = ()) -> int:
        self._failover.attend()
        return await super().start(sockets or self._failover.listening)

    async def _open_sockets(self) -> Sequence[socket.socket]:
        sockets = await super()._open_sockets()
        self._failover.keep_listening(sockets)
        return sockets

    async def _accept_at(self, sock: socket.socket) -> Acceptor:
        if self.tls is not None:  # whose state ends with its process: only clients to come wait for the next one
            return await super()._accept_at(sock)
        return HeldListener(sock, self._failover, self._serve_held)

    async def _serve_held(self, sock: socket.socket, held: HeldConnection | None) -> None:
        """Raises OSError for a connection that is broken already."""
        await self._serve(sock, self._observe(held))

    async def _serve(
        self, sock: socket.socket, observer: JournalObserver[C], restored: RestoredConnection[C] | None = None
    ) -> None:
        make = functools.partial(HttpConnection, self._config, self._handler, self, observer, restored)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(make, sock)
        except OSError:
            observer.closed(None)
            raise

    async def take_over(self) -> None:
        """Continues the connections that the previous router has left."""
        orphans, self._failover.connections = self._failover.connections, []
        num_running = 0
        for orphan in orphans:
            observer = self._observe(orphan.held, orphan.unfinished if orphan.is_running else None)
            restored = orphan.restored(observer)
            num_running += restored.is_running
            try:
                await self._serve(orphan.sock, observer, restored)
            except OSError as error:
                log.warning("a client's connection ends here: %s", error)
        if orphans:
            log.info("took over %d connections, %d of them with a request", len(orphans), num_running)

    async def drain(self, deadline_s: float) -> bool:
        """Stop accepting, let running responses end. True if all did within `deadline_s`. Until then, they outlive this
        server."""
        try:
            return await super().drain(deadline_s)
        finally:
            self._failover.farewell()

    def refuse_clients(self) -> None:
        """No new ones from now on. Before `start`: it only continues those of the previous router."""
        self._failover.stop_listening()
        super().refuse_clients()

    async def stop(self) -> None:
        """Cut what is left and wait until its handlers have ended. Without a drain before, the next server of this
        session goes on with what it can."""
        self._failover.close()
        await super().stop()
