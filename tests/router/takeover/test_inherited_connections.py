"""What a server does with a connection of which the keeper has a duplicate."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from slipstream.router.config import HttpConfig
from slipstream.router.http.errors import HttpError
from slipstream.router.http.exchange import Exchange, Handler
from slipstream.router.http.reader import STRANGERS_BODY_BYTES, CheckCaller, Request
from slipstream.router.http.server import HttpServer
from slipstream.router.takeover.estate import Estate
from slipstream.router.takeover.keeper import Keeper

TIMEOUT_S = 10.0
BODY = bytes(STRANGERS_BODY_BYTES + 1)  # so large that the caller is looked at before it is taken
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    keeper.close()


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
            exchange.notes.ended(0)
            self.ended.set()


async def serve(keeper: Keeper, handler: Handler, check_caller: CheckCaller | None = None) -> tuple[HttpServer, int]:
    estate = await asyncio.to_thread(Estate.of_keeper, keeper.path)
    assert estate is not None
    server = HttpServer(HttpConfig(host="127.0.0.1", port=0), handler, check_caller=check_caller, estate=estate)
    return server, await server.start()


def refuse(authorization: bytes) -> None:
    raise HttpError(401, "The key has expired.")


def test_a_handler_may_take_notes_until_it_has_ended_though_its_client_has_left(keeper: Keeper) -> None:
    async def main() -> None:
        handler = Streaming()
        server, port = await serve(keeper, handler)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        await reader.readuntil(b"part\r\n")
        writer.close()
        await asyncio.wait_for(handler.ended.wait(), TIMEOUT_S)
        await server.drain(TIMEOUT_S)
        await server.stop()

    asyncio.run(main())


def test_a_stream_whose_caller_is_not_let_in_again_breaks_off_without_a_second_head(keeper: Keeper) -> None:
    async def main() -> None:
        server, port = await serve(keeper, Streaming())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        await reader.readuntil(b"part\r\n")
        await server.stop()
        following, _ = await serve(keeper, Streaming(), refuse)
        await following.take_over()
        assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
        writer.close()
        await following.drain(TIMEOUT_S)
        await following.stop()

    asyncio.run(main())


def test_an_idle_client_does_not_hold_up_a_drain_that_began_before_it_was_taken_over(keeper: Keeper) -> None:
    async def main() -> None:
        server, port = await serve(keeper, Streaming())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not server.num_connections:
            await asyncio.sleep(0)
        await server.stop()
        following, _ = await serve(keeper, Streaming())
        assert following.estate is not None
        connections, following.estate.connections = following.estate.connections, []
        assert connections
        await following.drain(TIMEOUT_S)
        following.estate.connections = connections
        await following.take_over()
        assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
        writer.close()
        await following.stop()

    asyncio.run(main())


async def answer(request: Request, exchange: Exchange) -> None:
    exchange.respond(200, request.path.encode())


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
    await asyncio.wait_for(reader.readuntil(path.encode()), TIMEOUT_S)


def test_a_connection_that_could_not_be_kept_at_first_is_kept_after_its_next_request(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server, port = await serve(keeper, answer)
        with monkeypatch.context() as full:
            full.setattr(server.estate, "_most_files", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await ask(reader, writer, "/1")
        await ask(reader, writer, "/2")
        await ask(reader, writer, "/3")
        await server.stop()
        following, _ = await serve(keeper, answer)
        await following.take_over()
        await ask(reader, writer, "/4")
        writer.close()
        await following.drain(TIMEOUT_S)
        await following.stop()

    asyncio.run(main())


def test_a_connection_that_its_server_closes_ends_though_the_link_to_the_keeper_broke(keeper: Keeper) -> None:
    async def main() -> None:
        server, port = await serve(keeper, answer)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await ask(reader, writer, "/1")
        for link in list(keeper._links):
            link.shutdown(socket.SHUT_RDWR)
        writer.write(b"GET /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), TIMEOUT_S)).endswith(b"/2")
        writer.close()
        await server.drain(TIMEOUT_S)
        await server.stop()

    asyncio.run(main())
