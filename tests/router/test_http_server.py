"""The HTTP server against raw sockets: good clients, slow ones, broken ones, and those that leave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace

import orjson
import pytest

from slipstream.router.config import HttpConfig
from slipstream.router.http.errors import HttpError
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.reader import Request, RequestReader
from slipstream.router.http.routes import Routes
from slipstream.router.http.server import HttpServer
from tests.router.fake_cluster import run

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


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """Read one response, chunked or not."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if line)}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while part := await self.chunk():
                body += part
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            body = await self.reader.read()
        return int(head[0].split()[1]), headers, body

    async def chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def at_end(self) -> bool:
        return await self.reader.read() == b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(config: HttpConfig = CONFIG) -> AsyncIterator[tuple[Site, HttpServer, int]]:
    site = Site()
    server = HttpServer(config, site.routes)
    port = await server.start()
    try:
        yield site, server, port
    finally:
        await server.stop()
        assert server.num_connections == 0


def error_of(body: bytes) -> dict[str, object]:
    error = orjson.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


def post(path: str, body: bytes = b"", extra: bytes = b"") -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (path.encode(), extra, len(body), body)


def get(path: str) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode()


# ---- good clients


def test_keep_alive_serves_many_requests_on_one_connection() -> None:
    async def main() -> None:
        async with serving() as (_, server, port):
            client = await Client.connect(port)
            for i in range(20):
                client.send(post("/echo", b"body %d" % i))
                status, headers, body = await client.response()
                assert (status, body) == (200, b"body %d" % i)
                assert "date" in headers
                assert "connection" not in headers
            assert server.num_connections == 1
            await client.close()

    run(main)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            client = await Client.connect(port)
            client.send(post("/wait") + b"".join(post("/echo", b"%d" % i) for i in range(40)))
            await site.started.wait()
            site.release.set()
            assert (await client.response())[2] == b"released"
            for i in range(40):
                assert (await client.response())[2] == b"%d" % i
            await client.close()

    run(main)


def test_a_request_arriving_byte_by_byte_is_served() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            for byte in post("/echo", b"slow but honest"):
                client.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.response())[2] == b"slow but honest"
            await client.close()

    run(main)


def test_a_chunked_request_body_is_joined() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(
                b"POST /echo HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
            )
            assert (await client.response())[2] == b"abcdefg"
            await client.close()

    run(main)


def test_expect_100_continue_is_answered_before_the_body() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(b"abc")
            assert (await client.response())[2] == b"abc"
            await client.close()

    run(main)


def test_an_old_client_that_expects_100_continue_gets_the_response_alone() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(b"POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc")
            status, _, body = await client.response()
            assert (status, body) == (200, b"abc")
            await client.close()

    run(main)


def test_expect_100_continue_with_a_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
            assert (await client.response())[0] == 413
            await client.close()

    run(main)


def test_an_offer_to_upgrade_is_ignored_and_the_body_is_kept() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
            client.send(post("/echo", b"from java", upgrade) + post("/echo", b"second"))
            assert (await client.response())[2] == b"from java"
            assert (await client.response())[2] == b"second"
            await client.close()

    run(main)


def test_http_1_0_gets_an_unchunked_stream_that_ends_with_the_connection() -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            site.release.set()
            client = await Client.connect(port)
            client.send(b"POST /stream HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n")
            _, headers, body = await client.response()
            assert headers["connection"] == "close"
            assert body == b"data: 0\n\ndata: 1\n\n"
            await client.close()

    run(main)


def test_connection_close_is_honoured() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(post("/echo", b"bye", b"Connection: close\r\n"))
            _, headers, body = await client.response()
            assert (headers["connection"], body) == ("close", b"bye")
            assert await client.at_end()
            await client.close()

    run(main)


def test_head_has_the_length_but_no_body() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(b"HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n" + get("/hello"))
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert b"content-length: 5" in head
            assert (await client.response())[2] == b"hello"
            await client.close()

    run(main)


def test_a_stream_sends_its_first_part_at_once_and_in_one_packet_with_the_head() -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            client = await Client.connect(port)
            client.send(post("/stream"))
            await site.started.wait()
            first = await client.reader.read(65536)
            assert first.startswith(b"HTTP/1.1 200 OK\r\n")
            assert first.endswith(b"\r\n\r\n9\r\ndata: 0\n\n\r\n")
            site.release.set()
            assert await client.chunk() == b"data: 1\n\n"
            assert await client.chunk() == b""
            await client.close()

    run(main)


def test_paths_are_decoded_and_ids_may_contain_slashes() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            for path in ("/items/org/name", "/items/org%2Fname", "/items/org/name?x=1", "http://host/items/org/name"):
                client.send(get(path))
                assert (await client.response())[2] == b"org/name", path
            await client.close()

    run(main)


# ---- wrong requests


@pytest.mark.parametrize(
    ("request_bytes", "status", "allow"),
    [
        (get("/nowhere"), 404, None),
        (get("/items/"), 404, None),
        (get("/echo"), 405, "POST"),
        (post("/hello"), 405, "GET, HEAD"),
        (post("/items/x"), 405, "GET, HEAD"),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404, None),
    ],
)
def test_an_unknown_path_or_method_is_refused_and_the_connection_lives(
    request_bytes: bytes, status: int, allow: str | None
) -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(request_bytes)
            got, headers, body = await client.response()
            assert got == status
            assert headers.get("allow") == allow
            assert error_of(body)["type"] == "invalid_request_error"
            client.send(get("/hello"))
            assert (await client.response())[2] == b"hello"
            await client.close()

    run(main)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"complete garbage\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /hello HTTP/2.0\r\n\r\n", 505),
        (b"GET /hello\r\n\r\n", 505),
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: a-miracle\r\nContent-Length: 3\r\n\r\n", 417),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 9000 + b"\r\n\r\n", 431),
        (b"GET /hello HTTP/1.1\r\n" + b"a:b\r\n" * 200 + b"\r\n", 431),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n", 413),
        (get("/hello") * 70, 400),
        (b"GET /hello HTTP/1.1\r\nAccept: */*\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET /hello HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 400),
    ],
)
def test_a_broken_request_is_refused_in_openai_form_and_the_connection_closes(
    request_bytes: bytes, status: int
) -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(request_bytes)
            got = 200
            while got == 200:
                got, headers, body = await client.response()
            assert got == status, body
            assert headers["connection"] == "close"
            assert error_of(body)["message"]
            assert await client.at_end()
            await client.close()

    run(main)


def test_a_huge_body_is_refused_while_it_is_being_sent_and_the_client_can_read_why() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            for head in (b"Content-Length: 104857600", b"Transfer-Encoding: chunked"):
                client = await Client.connect(port)
                client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % head)
                megabyte = b"x" * 2**20
                for _ in range(100):
                    client.send(b"100000\r\n" + megabyte + b"\r\n" if b"chunked" in head else megabyte)
                    await client.writer.drain()
                status, _, body = await client.response()
                assert status == 413
                assert error_of(body)["code"] == "body_too_large"
                await client.close()

    run(main)


def test_a_header_without_end_is_cut_off_at_the_limit() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(b"GET /hello HTTP/1.1\r\nHost: x\r\nX: ")
            for _ in range(40):
                client.send(b"y" * 1000)
                await asyncio.sleep(0.001)
            assert (await client.response())[0] == 431
            await client.close()

    run(main)


def test_a_trailer_without_end_is_cut_off_at_the_limit() -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ")
            for _ in range(40):
                client.send(b"y" * 1000)
                await asyncio.sleep(0.001)
            assert (await client.response())[0] == 431
            await client.close()

    run(main)


def test_headers_within_the_limit_may_come_in_any_pieces() -> None:
    headers = b"".join(b"X-%d: %b\r\n" % (i, b"y" * 1000) for i in range(7))
    request = get("/hello")[:-2] + headers + b"\r\n"
    for size in (1, 7, 1000, 5000):
        reader = RequestReader(max_header_bytes=8 * 1024, max_body_bytes=1)
        arrived = [found for i in range(0, len(request), size) for found in reader.feed(request[i : i + size])]
        assert [type(found) for found in arrived] == [Request], size


@pytest.mark.parametrize(
    ("part", "config"),
    [
        (b"GET /hel", replace(CONFIG, header_timeout_s=0.1)),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc", replace(CONFIG, body_timeout_s=0.1)),
    ],
)
def test_half_a_request_times_out_with_408(part: bytes, config: HttpConfig) -> None:
    async def main() -> None:
        async with serving(config) as (_, _, port):
            client = await Client.connect(port)
            client.send(part)
            status, _, body = await client.response()
            assert status == 408
            assert error_of(body)["code"] == "request_timeout"
            assert await client.at_end()
            await client.close()

    run(main)


def test_a_trickle_of_header_bytes_does_not_extend_the_timeout() -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, header_timeout_s=0.2)) as (_, _, port):
            client = await Client.connect(port)
            client.send(b"GET /hello HTTP/1.1\r\nHost: x\r\nX: ")

            async def trickle() -> None:
                while True:
                    client.send(b"y")
                    await asyncio.sleep(0.02)

            drip = asyncio.create_task(trickle())
            assert (await client.response())[0] == 408
            drip.cancel()
            await client.close()

    run(main)


def test_an_idle_connection_is_closed() -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, keep_alive_s=0.1)) as (_, _, port):
            fresh, used = await Client.connect(port), await Client.connect(port)
            used.send(get("/hello"))
            assert (await used.response())[2] == b"hello"
            for client in (fresh, used):
                assert await client.at_end()
                await client.close()

    run(main)


@pytest.mark.parametrize("path", ["/crash", "/silent"])
def test_a_failing_handler_is_a_500_without_details(path: str) -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(get(path))
            status, _, body = await client.response()
            assert status == 500
            assert error_of(body)["type"] == "server_error"
            assert b"boom" not in body
            await client.close()

    run(main)


# ---- clients that leave, and slow ones


@pytest.mark.parametrize("path", ["/wait", "/stream"])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_a_client_that_leaves_cancels_its_handler_at_once(path: str, how: str) -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            client = await Client.connect(port)
            client.send(post(path))
            await site.started.wait()
            if how == "half-close":
                client.writer.write_eof()
            elif how == "reset":
                sock: socket.socket = client.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                client.writer.transport.abort()
            else:
                client.writer.close()
            await site.cancelled.wait()
            await client.close()

    run(main)


def test_a_request_that_fails_when_its_client_has_left_ends_in_order() -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            client = await Client.connect(port)
            client.send(post("/late"))
            await site.started.wait()
            await client.close()
            await site.cancelled.wait()
            assert site.late_task is not None
            await asyncio.wait([site.late_task])
            assert site.late_task.exception() is None

    run(main)


def test_a_client_that_leaves_is_noticed_behind_pipelined_requests() -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            client = await Client.connect(port)
            client.send(post("/wait") + post("/echo", b"x" * 100_000) + b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Le")
            await site.started.wait()
            await client.close()
            await site.cancelled.wait()

    run(main)


def test_sending_far_ahead_closes_the_connection_after_the_running_response() -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            client = await Client.connect(port)
            client.send(post("/wait"))
            await site.started.wait()
            client.send(b"".join(post("/echo", b"x" * 100_000) for _ in range(10)))
            await client.writer.drain()
            site.release.set()
            answers = await client.reader.read()
            assert 1 <= answers.count(b"HTTP/1.1 200 OK") < 11
            await client.close()

    run(main)


def test_no_further_request_begins_before_the_responses_so_far_are_read() -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            client = await Client.connect(port)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(get("/big") * 12)
            other = await Client.connect(port)
            for _ in range(200):
                other.send(get("/hello"))
                assert (await other.response())[2] == b"hello"
            assert site.num_big == 1
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(12):
                assert len((await client.response())[2]) == 8_000_000
            await client.close()
            await other.close()

    run(main)


def test_requests_do_not_pile_up_behind_responses_that_nobody_reads() -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            client = await Client.connect(port)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(get("/big"))
            other = await Client.connect(port)
            while not site.num_big:
                other.send(get("/hello"))
                await other.response()
            client.send(b"".join(post("/echo", b"x" * 100_000) for _ in range(30)))
            await client.writer.drain()
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            answers = await client.reader.read()
            assert 1 <= answers.count(b"HTTP/1.1 200 OK") < 5
            await client.close()
            await other.close()

    run(main)


def test_a_slow_reader_holds_back_its_own_stream_only_and_memory_is_bounded() -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            slow = await Client.connect(port)
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            slow.send(post("/flood"))
            await site.started.wait()
            other = await Client.connect(port)
            written_before = -1
            while site.num_written != written_before:
                written_before = site.num_written
                for _ in range(200):  # others are served while the slow one is stuck
                    other.send(get("/hello"))
                    assert (await other.response())[2] == b"hello"
            assert site.num_written < 16_000_000  # what the kernel's socket buffers take, plus ours
            slow.writer.transport.abort()
            await site.cancelled.wait()
            await other.close()

    run(main)


def test_a_reader_that_reads_nothing_is_cut_off_and_its_handler_cancelled() -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, write_timeout_s=0.2)) as (site, _, port):
            client = await Client.connect(port)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(post("/flood"))
            await site.cancelled.wait()
            client.writer.transport.abort()

    run(main)


def test_a_finished_response_that_nobody_reads_does_not_keep_the_connection_for_ever() -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, write_timeout_s=0.2)) as (_, server, port):
            client = await Client.connect(port)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(b"GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while server.num_connections == 0:
                await asyncio.sleep(0.01)
            while server.num_connections:
                await asyncio.sleep(0.01)
            client.writer.transport.abort()

    run(main)


def test_a_slow_but_living_reader_gets_the_whole_of_a_big_response() -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, write_timeout_s=1.0)) as (_, _, port):
            client = await Client.connect(port)
            client.send(b"GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await client.reader.readuntil(b"\r\n\r\n")
            num_bytes = 0
            while part := await client.reader.read(400_000):
                num_bytes += len(part)
                await asyncio.sleep(0.03)  # of two seconds, in 61 reads or more
            assert num_bytes == 8_000_000
            await client.close()

    run(main)


# ---- life cycle


def test_drain_finishes_running_streams_closes_idle_connections_and_accepts_nothing() -> None:
    async def main() -> None:
        async with serving() as (site, server, port):
            idle, busy = await Client.connect(port), await Client.connect(port)
            idle.send(get("/hello"))
            await idle.response()
            busy.send(post("/wait"))
            await site.started.wait()
            draining = asyncio.create_task(server.drain(10))
            assert await idle.at_end()
            with pytest.raises(ConnectionError):
                await Client.connect(port)
            site.release.set()
            _, headers, body = await busy.response()
            assert (headers["connection"], body) == ("close", b"released")
            assert await draining
            for client in (idle, busy):
                await client.close()

    run(main)


def test_drain_gives_up_at_its_deadline_and_stop_cancels_what_is_left() -> None:
    async def main() -> None:
        async with serving() as (site, server, port):
            client = await Client.connect(port)
            client.send(post("/stream"))
            await site.started.wait()
            assert not await server.drain(0.05)
            assert not site.cancelled.is_set()
            await server.stop()
            assert site.cancelled.is_set()
            await client.close()

    run(main)


def test_a_port_in_use_is_said_in_one_sentence() -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            with pytest.raises(OSError, match=f"cannot listen for HTTP on 127.0.0.1:{port}: the port is in use"):
                await HttpServer(replace(CONFIG, port=port), site.routes).start()

    run(main)


def test_error_bodies_have_the_form_that_clients_parse() -> None:
    error = HttpError(400, "no", param="messages.0.role", code="invalid_value")
    assert orjson.loads(error.body()) == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "messages.0.role", "code": "invalid_value"}
    }
