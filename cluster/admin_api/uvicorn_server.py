"""Serves the admin API with uvicorn. It is imported late and in a thread, because it imports FastAPI."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream.cluster.admin_api.admin_app import build_app
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.admin_api.history_routes import history_routes
from slipstream.cluster.admin_api.model_routes import model_routes
from slipstream.cluster.admin_api.planner_routes import planner_routes
from slipstream.cluster.admin_api.update_routes import update_routes
from slipstream.cluster.repository.files_metrics import FilesPage
from slipstream.router.observability.certificate_metrics import CertificatePage
from slipstream.router.tls.server_tls import ServerTls

GOODBYE_S = 1
HEAD_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 1000  # with one more, callers get a 503


class AdminConnection(H11Protocol):
    """Closes the connection if the head of its first request, or of one that has begun, takes longer than
    `HEAD_TIMEOUT_S`. Between requests, uvicorn has a limit of its own."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_in_head = self.conn.their_state is h11.IDLE
        if self._head_timer is None and is_in_head:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)
        elif self._head_timer is not None and not is_in_head:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class UvicornServer(uvicorn.Server):
    """A uvicorn server that does not handle signals, as the driver does that."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def web_server(parts: DriverParts, tls: ServerTls | None = None) -> UvicornServer:
    """A server with the routes of everything that operators can ask of this driver, perhaps over TLS."""
    pages = [FilesPage(parts.files), CertificatePage({"admin": tls})]
    routers = [planner_routes(parts.decisions, parts.fleet, pages)]
    routers.append(history_routes(parts.changes))
    if parts.models is not None:
        routers.append(model_routes(parts.models))
    if parts.updaters is not None:
        routers.append(update_routes(parts.updaters, parts.tensors))
    app = build_app(parts, routers)
    config = uvicorn.Config(
        app,
        http=AdminConnection,
        limit_concurrency=MAX_CONNECTIONS,
        loop="none",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GOODBYE_S,
    )
    config.load()
    if tls is not None:
        config.ssl = tls.context  # uvicorn would read the files once; this context takes up renewed ones
    return UvicornServer(config)
