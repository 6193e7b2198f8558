"""The HTTP server over raw sockets: what good clients get, and how it starts and ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
import pytest

from slipstream.router.http.http_error import HttpError
from slipstream.router.http.server import HttpServer
from tests.support.router.fake_cluster import run
from tests.support.router.http_site import CONFIG, serving
from tests.support.router.raw_client import Client, get, post


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


def test_a_server_that_leaves_answers_kept_and_new_connections_and_closes_them() -> None:
    async def main() -> None:
        async with serving() as (_, server, port):
            kept = await Client.connect(port)
            kept.send(get("/hello"))
            assert "connection" not in (await kept.response())[1]
            server.leave()
            for client in (kept, await Client.connect(port)):
                client.send(get("/hello"))
                status, headers, body = await client.response()
                assert (status, headers["connection"], body) == (200, "close", b"hello")
                assert await client.at_end()
                await client.close()

    run(main)


def test_a_request_that_is_on_its_way_when_the_drain_begins_is_answered() -> None:
    async def main() -> None:
        async with serving() as (_, server, port):
            client = await Client.connect(port)
            client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n1")
            while not server._connections or next(iter(server._connections))._reader.state != "body":  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            draining = asyncio.create_task(server.drain(10))
            await asyncio.sleep(0)
            client.send(b"2")
            _, headers, body = await client.response()
            assert (headers["connection"], body) == ("close", b"12")
            assert await draining
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
                await HttpServer(replace(CONFIG, port=port), site.routes, lambda: None).start()

    run(main)


def test_error_bodies_have_the_form_that_clients_parse() -> None:
    error = HttpError(400, "no", param="messages.0.role", code="invalid_value")
    assert orjson.loads(error.body()) == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "messages.0.role", "code": "invalid_value"}
    }
