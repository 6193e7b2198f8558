"""A real HTTP server whose handlers the tests know."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable

from slipstream.router.config.router_config import HttpConfig
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.http.routes import Routes
from slipstream.router.http.server import HttpServer

CONFIG = HttpConfig(port=0, max_body_mib=1, max_header_kib=8)


class Site:
    """Handlers to serve, and what happened to them."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.release = asyncio.Event()
        self.num_written = 0
        self.num_big = 0
        self.late_task: asyncio.Task[object] | None = None
        self.routes = Routes()
        self.routes.add("POST", "/echo", self.echo)
        self.routes.add("GET", "/hello", self.hello)
        self.routes.add("POST", "/wait", self.wait)
        self.routes.add("POST", "/lingering", self.lingering)
        self.routes.add("POST", "/stream", self.stream)
        self.routes.add("POST", "/flood", self.flood)
        self.routes.add("GET", "/big", self.big)
        self.routes.add("GET", "/crash", self.crash)
        self.routes.add("GET", "/silent", self.silent)
        self.routes.add("POST", "/late", self.late)
        self.routes.add_item("GET", "/items/", "", self.item)

    async def echo(self, request: Request, exchange: Exchange) -> None:
        exchange.respond(200, request.body, "application/octet-stream")

    async def hello(self, request: Request, exchange: Exchange) -> None:
        exchange.respond(200, b"hello", "text/plain")

    async def item(self, request: Request, exchange: Exchange, item: str) -> None:
        exchange.respond(200, item.encode(), "text/plain")

    async def crash(self, request: Request, exchange: Exchange) -> None:
        raise RuntimeError("boom")

    async def silent(self, request: Request, exchange: Exchange) -> None:
        pass

    async def late(self, request: Request, exchange: Exchange) -> None:
        self.late_task = asyncio.current_task()
        try:
            await self._noting_cancellation(self.release.wait())
        except asyncio.CancelledError:
            raise HttpError(503, "It ends at the same moment.") from None

    async def big(self, request: Request, exchange: Exchange) -> None:
        self.num_big += 1
        exchange.respond(200, b"x" * 8_000_000, "text/plain")

    async def wait(self, request: Request, exchange: Exchange) -> None:
        await self._noting_cancellation(self.release.wait())
        exchange.respond(200, b"released", "text/plain")

    async def lingering(self, request: Request, exchange: Exchange) -> None:
        """Is not done when all of its response has been sent."""
        exchange.respond(200, b"sent", "text/plain")
        await self.release.wait()

    async def stream(self, request: Request, exchange: Exchange) -> None:
        exchange.start(200, "text/event-stream")
        exchange.write(b"data: 0\n\n")
        await self._noting_cancellation(self.release.wait())
        exchange.finish(b"data: 1\n\n")

    async def flood(self, request: Request, exchange: Exchange) -> None:
        async def write_for_ever() -> None:
            while True:
                exchange.write(b"x" * 10_000)
                self.num_written += 10_000
                await exchange.drain()
                await asyncio.sleep(0)

        exchange.start(200, "text/event-stream")
        await self._noting_cancellation(write_for_ever())

    async def _noting_cancellation(self, wait: Awaitable[object]) -> None:
        self.started.set()
        try:
            await wait
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@contextlib.asynccontextmanager
async def serving(config: HttpConfig = CONFIG) -> AsyncIterator[tuple[Site, HttpServer, int]]:
    site = Site()
    server = HttpServer(config, site.routes, lambda: None)
    port = await server.start()
    try:
        yield site, server, port
    finally:
        await server.stop()
        assert server.num_connections == 0
