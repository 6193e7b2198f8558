"""A server behind a gateway that notes what it gets, and answers as a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class ScriptedUpstream:
    """`POST /stream` sends an event for each `release`, `/cut` closes the connection instead of an answer, and every
    other path says what has arrived."""

    name: str
    port: int = 0
    is_ready: bool = True
    requests: list[str] = field(default_factory=list)
    events: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health/ready":
            return web.Response(status=200 if self.is_ready else 503)
        body = await request.read()
        self.requests.append(request.path)
        if request.path == "/cut":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if request.path == "/busy":
            return web.Response(status=503)
        if request.path == "/stream":
            return await self._stream(request)
        seen = {
            "name": self.name,
            "num_bytes": len(body),
            "headers": {k.lower(): v for k, v in request.headers.items()},
        }
        return web.Response(text=json.dumps(seen), content_type="application/json")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        while (event := await self.events.get()) is not None:
            await answer.write(f"data: {event}\n\n".encode())
        await answer.write_eof()
        return answer


@asynccontextmanager
async def scripted_upstream(name: str) -> AsyncIterator[ScriptedUpstream]:
    upstream = ScriptedUpstream(name)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", upstream.handle)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        upstream.port = runner.addresses[0][1]
        yield upstream
    finally:
        await runner.cleanup()
