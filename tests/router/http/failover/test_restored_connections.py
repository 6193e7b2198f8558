"""What a server does with a connection of which the socket holder has a duplicate."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import random
import socket
import termios
from contextlib import suppress
from typing import Any

import pytest

from slipstream.router.api.admin.worker_pages import WorkerPages
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.held_connection import MAX_LIVES
from slipstream.router.http.failover.holder.holder_messages import HolderMessageKind
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.http.failover.socket_bytes import socket_bytes
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.http.routes import Routes
from slipstream.router.protocol.messages import Role
from tests.support.router.held_router import TIMEOUT_S
from tests.support.router.held_server import REQUEST, Streaming, answer, ask, end, exchange_servers, new_server, serve


def refuse(authorization: bytes) -> None:
    raise HttpError(401, "The key has expired.")


def test_a_handler_may_take_notes_until_it_has_ended_though_its_client_has_left(holder: SocketHolder) -> None:
    async def main() -> None:
        handler = Streaming()
        server, port = await serve(holder, handler)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        await reader.readuntil(b"part\r\n")
        writer.close()
        await asyncio.wait_for(handler.ended.wait(), TIMEOUT_S)
        await server.drain(TIMEOUT_S)
        await server.stop()

    asyncio.run(main())


def test_a_stream_whose_caller_is_not_let_in_again_breaks_off_without_a_second_head(holder: SocketHolder) -> None:
    async def main() -> None:
        server, port = await serve(holder, Streaming())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        await reader.readuntil(b"part\r\n")
        await server.stop()
        following, _ = await serve(holder, Streaming(), refuse)
        await following.take_over()
        assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
        await end(following, writer)

    asyncio.run(main())


def test_an_idle_client_does_not_hold_up_a_drain_that_began_before_it_was_taken_over(holder: SocketHolder) -> None:
    async def main() -> None:
        server, port = await serve(holder, Streaming())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not server.num_connections:
            await asyncio.sleep(0)
        await server.stop()
        following, _ = await serve(holder, Streaming())
        connections, following._failover.connections = following._failover.connections, []
        assert connections
        await following.drain(TIMEOUT_S)
        following._failover.connections = connections
        await following.take_over()
        assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
        writer.close()
        await following.stop()

    asyncio.run(main())


def test_who_takes_over_to_end_refuses_new_clients_though_the_one_before_still_listened(holder: SocketHolder) -> None:
    async def main() -> None:
        server, port = await serve(holder, answer)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await ask(reader, writer, "/before")
        await server.stop()
        following = await new_server(holder, answer)
        following.refuse_clients()
        await following.start()
        async with asyncio.timeout(TIMEOUT_S):
            while await is_accepted(port):  # until the socket holder, too, has closed its duplicate
                pass
        await following.take_over()
        assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
        await end(following, writer)

    asyncio.run(main())


async def is_accepted(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (ConnectionRefusedError, ConnectionResetError):
        return False
    writer.close()
    return True


def test_a_connection_that_could_not_be_kept_at_first_is_kept_after_its_next_request(
    holder: SocketHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server, port = await serve(holder, answer)
        with monkeypatch.context() as full:
            full.setattr(server._failover, "_max_files", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await ask(reader, writer, "/1")
        await ask(reader, writer, "/2")
        await ask(reader, writer, "/3")
        await server.stop()
        following, _ = await serve(holder, answer)
        await following.take_over()
        await ask(reader, writer, "/4")
        await end(following, writer)

    asyncio.run(main())


def test_a_connection_that_its_server_closes_ends_though_the_link_to_the_socket_holder_broke(
    holder: SocketHolder,
) -> None:
    async def main() -> None:
        server, port = await serve(holder, answer)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await ask(reader, writer, "/1")
        for link in list(holder._links):
            link.shutdown(socket.SHUT_RDWR)
        writer.write(b"GET /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), TIMEOUT_S)).endswith(b"/2")
        await end(server, writer)

    asyncio.run(main())


def test_a_client_is_told_once_to_go_on_with_its_request(holder: SocketHolder) -> None:
    async def main() -> None:
        server, port = await serve(holder, answer)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /target HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
        reply = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        following = await exchange_servers(holder, server, answer)
        writer.write(b"{}")
        reply += await asyncio.wait_for(reader.readuntil(b"/target"), TIMEOUT_S)
        assert (reply.count(b"HTTP/1.1 100 "), reply.count(b"HTTP/1.1 200 ")) == (1, 1)
        await end(following, writer)

    asyncio.run(main())


LARGE = random.Random(1).randbytes(110_000)  # more than the system takes below, and no more than is kept


async def answer_largely(request: Request, exchange: Exchange) -> None:
    exchange.respond(200, LARGE)


@pytest.mark.parametrize("header", [b"", b"connection: close\r\n"], ids=["goes on", "closes"])
def test_a_client_that_sends_no_more_gets_the_rest_of_an_answer_that_was_all_there(
    holder: SocketHolder, header: bytes
) -> None:
    async def main() -> None:
        server, port = await serve(holder, answer_largely)
        for listener in server._acceptors:
            listener.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n%b\r\n" % header)
            while not unsent_of(server):
                await asyncio.sleep(0)
            client.shutdown(socket.SHUT_WR)
            following = await exchange_servers(holder, server, answer_largely)
            assert unsent_of(following)
            client.settimeout(TIMEOUT_S)
            data = await asyncio.to_thread(client.makefile("rb").read)
            assert data.partition(b"\r\n\r\n")[2] == LARGE
        await following.drain(TIMEOUT_S)
        await following.stop()

    asyncio.run(main())


def unsent_of(server: FailoverServer) -> int:
    return sum(connection._transport.get_write_buffer_size() for connection in server._connections)


def test_a_refused_client_that_still_sends_gets_its_refusal_from_the_next_server(holder: SocketHolder) -> None:
    async def main() -> None:
        server, port = await serve(holder, answer, refuse)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST[:1000])
        while not all(connection._discards_input for connection in server._connections) or not server._connections:
            await asyncio.sleep(0)
        writer.write(REQUEST[1000:2000])
        await writer.drain()
        following = await exchange_servers(holder, server, answer)
        assert following._connections  # and goes on throwing away what comes
        writer.write(REQUEST[2000:])
        assert (await asyncio.wait_for(reader.read(), TIMEOUT_S)).startswith(b"HTTP/1.1 401 ")
        await end(following, writer)

    asyncio.run(main())


def test_bytes_that_the_client_takes_while_they_are_counted_are_not_counted_twice() -> None:
    class Racing(socket.socket):
        """The peer takes and sends something right after a question."""

        num_races = 3

        def getsockopt(self, *question: Any) -> Any:
            found = super().getsockopt(*question)
            if self.num_races:
                self.num_races -= 1
                unread = waiting(self, termios.FIONREAD)
                peer.send(b"more")
                while waiting(self, termios.FIONREAD) == unread:
                    pass
                unacked = waiting(self, termios.TIOCOUTQ)
                while waiting(self, termios.TIOCOUTQ) == unacked:
                    peer.recv(1 << 20)
            return found

    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(listening.getsockname())
        accepted, _ = listening.accept()
        with Racing(fileno=accepted.detach()) as sock:
            sock.setblocking(False)
            num_written = 0
            with suppress(BlockingIOError):
                while True:
                    num_written += sock.send(bytes(65536))
            assert socket_bytes(sock) == (num_written, 0, False)
            assert not sock.num_races


def waiting(sock: socket.socket, question: int) -> int:
    return int.from_bytes(fcntl.ioctl(sock, question, bytes(4)), "little")


def journals_of(holder: SocketHolder) -> list[int]:
    """Descriptors of those that have come to it."""
    return [fds[1] for kind, fds in holder._slots[0]._held.values() if kind == HolderMessageKind.CONNECTION]


def test_a_connection_that_rests_for_a_while_takes_no_memory_for_its_answers(
    holder: SocketHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.router.http.timers.RELEASE_AFTER_S", 0.01)

    async def main() -> None:
        server, port = await serve(holder, answer_largely)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(LARGE))
            async with asyncio.timeout(TIMEOUT_S):
                while not (journals := journals_of(holder)):
                    await asyncio.sleep(0.001)
                (journal,) = journals
                while os.fstat(journal).st_blocks * 512 > mmap.PAGESIZE:
                    await asyncio.sleep(0.001)
        await end(server, writer)

    asyncio.run(main())


class Workers:
    """Answers only when it may, so that its server can be killed before."""

    def __init__(self) -> None:
        self.drained: list[str] = []

    def drain(self, name: str, next_role: Role | None = None, migrate: bool = True) -> bool:
        self.drained.append(name)
        return True


class NeverAnswering(Exchange):
    def respond(self, *answer: Any) -> None:
        self.ended = True


def test_a_drain_that_a_killed_router_may_have_begun_is_not_begun_again(holder: SocketHolder) -> None:
    workers, routes = Workers(), Routes()
    WorkerPages(workers).add_to(routes)

    async def drain_and_hang(request: Request, exchange: Exchange) -> None:
        await routes(
            request, NeverAnswering(request, exchange._sink, exchange.context, is_repeated=exchange._is_repeated)
        )
        await asyncio.Event().wait()

    async def main() -> None:
        server, port = await serve(holder, drain_and_hang)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /cluster/workers/decode-0/drain HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        while not workers.drained:
            await asyncio.sleep(0)
        following = await exchange_servers(holder, server, routes)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert workers.drained == ["decode-0"]
        await end(following, writer)

    asyncio.run(main())


async def hang(request: Request, exchange: Exchange) -> None:
    await asyncio.Event().wait()


def test_a_client_whose_request_may_be_what_kills_routers_is_told_that_nobody_goes_on_with_it(
    holder: SocketHolder,
) -> None:
    async def main() -> None:
        server, port = await serve(holder, hang)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        while not any(connection._exchange for connection in server._connections):
            await asyncio.sleep(0)
        for _ in range(MAX_LIVES):
            server = await exchange_servers(holder, server, hang)
            assert any(connection._exchange for connection in server._connections)
        server = await exchange_servers(holder, server, answer)
        reply = await asyncio.wait_for(reader.read(), TIMEOUT_S)
        assert reply.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"router_restarted"' in reply
        await end(server, writer)

    asyncio.run(main())
