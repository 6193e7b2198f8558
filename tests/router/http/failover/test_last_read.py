"""What a server had read when it was killed, and had not noted yet."""

from __future__ import annotations

import asyncio

import pytest

from slipstream.router.http.connection import HttpConnection
from slipstream.router.http.exchange import Exchange, Handler
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.http.reader import Request
from tests.support.router.held_router import TIMEOUT_S
from tests.support.router.held_server import REQUEST, Streaming, answer, ask, end, exchange_servers, serve


class BeforeItIsNoted:
    """From `begin` on a server reads from its connections as if it were killed before it has noted what came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._has_read = asyncio.Event()

    def begin(self) -> None:
        self._monkeypatch.setattr(HttpConnection, "buffer_updated", lambda _, nbytes: self._has_read.set())

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Returns when the server has read it."""
        self._has_read.clear()
        writer.write(data)
        await asyncio.wait_for(self._has_read.wait(), TIMEOUT_S)

    async def kill(self, holder: SocketHolder, server: FailoverServer, handler: Handler) -> FailoverServer:
        self._monkeypatch.undo()
        return await exchange_servers(holder, server, handler)


@pytest.mark.parametrize("num_noted", [0, 20, 50])
@pytest.mark.parametrize("num_answers", [0, 1])
def test_what_a_server_read_last_is_not_lost_when_it_is_killed_before_it_could_note_it(
    holder: SocketHolder, monkeypatch: pytest.MonkeyPatch, num_noted: int, num_answers: int
) -> None:
    request = b"POST /last HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"

    async def main() -> None:
        server, port = await serve(holder, answer)
        kill = BeforeItIsNoted(monkeypatch)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(num_answers):
            await ask(reader, writer, f"/{number}")
        if num_noted:
            writer.write(request[:num_noted])
            while not any(connection._reader.state != "idle" for connection in server._connections):
                await asyncio.sleep(0)
        kill.begin()
        await kill.send(writer, request[num_noted:])
        following = await kill.kill(holder, server, answer)
        await asyncio.wait_for(reader.readuntil(b"/last"), TIMEOUT_S)
        await ask(reader, writer, "/next")
        await end(following, writer)

    asyncio.run(main())


def test_what_was_read_of_one_client_is_not_taken_for_that_of_another(
    holder: SocketHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server, port = await serve(holder, answer)
        kill = BeforeItIsNoted(monkeypatch)
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for number, (reader, writer) in enumerate(clients):
            await ask(reader, writer, f"/{number}")
        kill.begin()
        for number, (_, writer) in enumerate(clients):
            await kill.send(writer, b"GET /again%d HTTP/1.1\r\nhost: x\r\n\r\n" % number)
        following = await kill.kill(holder, server, answer)
        assert await asyncio.wait_for(clients[0][0].read(), TIMEOUT_S) == b""
        await asyncio.wait_for(clients[1][0].readuntil(b"/again1"), TIMEOUT_S)
        for _, writer in clients:
            await end(following, writer)

    asyncio.run(main())


def test_a_request_that_was_read_behind_one_that_runs_ends_the_connection(
    holder: SocketHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server, port = await serve(holder, Streaming())
        kill = BeforeItIsNoted(monkeypatch)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        await reader.readuntil(b"part\r\n")
        kill.begin()
        await kill.send(writer, b"GET /behind HTTP/1.1\r\nhost: x\r\n\r\n")
        following = await kill.kill(holder, server, answer)
        assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
        await end(following, writer)

    asyncio.run(main())


def test_of_two_requests_that_came_together_the_first_is_not_answered_twice(holder: SocketHolder) -> None:
    async def answer_or_hang(request: Request, exchange: Exchange) -> None:
        if request.path == "/second":
            await asyncio.Event().wait()
        exchange.respond(200, request.path.encode())

    async def main() -> None:
        server, port = await serve(holder, answer_or_hang)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /first HTTP/1.1\r\nhost: x\r\n\r\nGET /second HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"/first"), TIMEOUT_S)
        while not any(connection._exchange for connection in server._connections):
            await asyncio.sleep(0)
        following = await exchange_servers(holder, server, answer)
        assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
        await end(following, writer)

    asyncio.run(main())
