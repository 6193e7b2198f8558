"""Serves the admin API in the driver's process, on its event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.config.cluster_config import AdminApiConfig
from slipstream.router.process.listening import close_all, listening_at
from slipstream.router.tls.server_tls import ServerTls

if TYPE_CHECKING:
    from slipstream.cluster.admin_api.uvicorn_server import UvicornServer

BACKLOG = 128


class AdminServer:
    """The port of the API. It listens from the start of the cluster, so early callers wait until the API is served."""

    def __init__(self, config: AdminApiConfig, port: int) -> None:
        """Starts to listen. Raises OSError if it cannot, TlsFileError if its certificate cannot be used."""
        self.tls = config.tls.server_tls() if config.tls.is_on else None
        self.sockets = listening_at(config.host, port, BACKLOG)
        self.port: int = self.sockets[0].getsockname()[1]

    def close(self) -> None:
        close_all(self.sockets)


@contextlib.asynccontextmanager
async def operating(port: AdminServer, parts: DriverParts) -> AsyncIterator[None]:
    """Serves the API while the context is open."""
    # In a thread, because the import takes longer than the loop should be blocked.
    server = await asyncio.to_thread(_web_server, parts, port.tls)
    task = asyncio.create_task(server.serve(sockets=port.sockets), name="admin-api")
    watch = asyncio.create_task(port.tls.watch(), name="certificate") if port.tls is not None else None
    try:
        yield
    finally:
        if watch is not None:
            watch.cancel()
        server.should_exit = True
        await task


def _web_server(parts: DriverParts, tls: ServerTls | None) -> UvicornServer:
    from slipstream.cluster.admin_api.uvicorn_server import web_server

    return web_server(parts, tls)
