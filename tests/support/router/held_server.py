"""HTTP servers whose connections a socket holder has, too, and what they answer."""

from __future__ import annotations

import asyncio

from slipstream.router.config.router_config import HttpConfig
from slipstream.router.http.exchange import Exchange, Handler
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.http.reader import STRANGERS_BODY_BYTES, CheckCaller, Request
from tests.support.router.held_router import TIMEOUT_S

BODY = bytes(STRANGERS_BODY_BYTES + 1)  # so large that the caller is looked at before it is taken
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Streaming:
    """Sends one part and waits. Notes something at its very end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def __call__(self, request: Request, exchange: Exchange) -> None:
        exchange.start(200, "text/plain")
        exchange.write(b"part")
        try:
            await asyncio.Event().wait()
        finally:
            exchange.context.ended(0)
            self.ended.set()


async def new_server(holder: SocketHolder, handler: Handler, check_caller: CheckCaller | None = None) -> FailoverServer:
    failover = await asyncio.to_thread(FailoverSession.of_holder, holder.path)
    assert failover is not None
    return FailoverServer(
        HttpConfig(host="127.0.0.1", port=0), handler, lambda notes: notes, failover, check_caller=check_caller
    )


async def serve(
    holder: SocketHolder, handler: Handler, check_caller: CheckCaller | None = None
) -> tuple[FailoverServer, int]:
    server = await new_server(holder, handler, check_caller)
    return server, await server.start()


async def answer(request: Request, exchange: Exchange) -> None:
    exchange.respond(200, request.path.encode())


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
    await asyncio.wait_for(reader.readuntil(path.encode()), TIMEOUT_S)


async def exchange_servers(holder: SocketHolder, server: FailoverServer, handler: Handler) -> FailoverServer:
    """As if the process of the first one had been killed."""
    await server.stop()
    following, _ = await serve(holder, handler)
    await following.take_over()
    return following


async def end(server: FailoverServer, *clients: asyncio.StreamWriter) -> None:
    """Of a test: all clients leave, and the server ends in order."""
    for writer in clients:
        writer.close()
    await server.drain(TIMEOUT_S)
    await server.stop()
