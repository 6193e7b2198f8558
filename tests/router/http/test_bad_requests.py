"""The HTTP server against requests that are wrong, broken, too large or never end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from slipstream.router.config.router_config import HttpConfig
from slipstream.router.http.reader import Request, RequestReader
from tests.support.router.fake_cluster import run
from tests.support.router.http_site import CONFIG, serving
from tests.support.router.raw_client import Client, error_of, get, post


@pytest.mark.parametrize(
    ("request_bytes", "status", "allow"),
    [
        (get("/nowhere"), 404, None),
        (get("/items/"), 404, None),
        (get("/echo"), 405, "POST, OPTIONS"),
        (post("/hello"), 405, "GET, HEAD, OPTIONS"),
        (post("/items/x"), 405, "GET, HEAD, OPTIONS"),
        (b"OPTIONS /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 404, None),
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
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
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
        (
            b"POST /echo HTTP/1.1\r\nHost: x\r\n" + b"Transfer-Encoding: %b\r\n" * 2 % (b"gzip", b"chunked") + b"\r\n",
            501,
        ),
        (b"POST /echo HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
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


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"GET /hello HTTP/1.1\r\nHost: x\r\nX: ", id="header"),
        pytest.param(
            b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ", id="trailer"
        ),
    ],
)
def test_a_header_or_trailer_without_end_is_cut_off_at_the_limit(begin: bytes) -> None:
    async def main() -> None:
        async with serving() as (_, _, port):
            client = await Client.connect(port)
            client.send(begin)
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
        async with serving(replace(CONFIG, keep_alive_s=1.0)) as (_, _, port):
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
