"""The port of Triton's metrics."""

from __future__ import annotations

from dataclasses import replace

from slipstream.router.config.kserve_config import TensorMetricsConfig
from slipstream.router.config.router_config import HttpConfig
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.reader import Request
from slipstream.router.http.routes import Routes
from slipstream.router.http.server import HttpServer
from slipstream.router.observability.tensor_metrics.tensor_metrics_page import TensorMetricsPage

CONTENT_TYPE = "text/plain; charset=utf-8"


class NoContext:
    """What is kept of an exchange of this port."""


class TensorMetricsServer:
    """Life cycle: `start`, `stop`. Serves `/metrics` without a key: all clients that reach the port may read it. `host`
    is used where the configuration has none."""

    def __init__(self, config: TensorMetricsConfig, page: TensorMetricsPage, *, host: str) -> None:
        self._page = page
        routes: Routes[NoContext] = Routes()
        routes.add("GET", "/metrics", self._metrics)
        http = replace(HttpConfig(), host=config.host or host, port=config.port or 0)
        self._server = HttpServer(http, routes, NoContext)

    async def start(self) -> int:
        """Listens. Returns the port. Raises OSError."""
        return await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def _metrics(self, request: Request, exchange: Exchange[NoContext]) -> None:
        exchange.respond(200, self._page.render(), CONTENT_TYPE)
