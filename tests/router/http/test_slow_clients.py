"""The HTTP server against clients that leave, read slowly or not at all, and send far ahead."""

from __future__ import annotations

import asyncio
import gc
import socket
import tracemalloc
from dataclasses import replace

import pytest

from tests.support.router.fake_cluster import run
from tests.support.router.http_site import CONFIG, serving
from tests.support.router.raw_client import Client, get, post


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


def test_what_a_client_has_sent_does_not_outlive_its_connection() -> None:
    """Not even until the garbage collector comes by, which may be thousands of connections later."""
    sent = b"POST /hello HTTP/1.1\r\nhost: a\r\ncontent-length: 8000000\r\n\r\n" + b" " * 2_000_000

    async def main() -> None:
        async with serving(replace(CONFIG, max_body_mib=16)) as (_, server, port):
            for number in range(6):
                client = await Client.connect(port)
                client.send(sent)
                while not server.num_connections:
                    await asyncio.sleep(0.001)
                await client.writer.drain()
                await client.close()
                while server.num_connections:
                    await asyncio.sleep(0.001)
                if number == 0:
                    before = tracemalloc.get_traced_memory()[0]
            assert tracemalloc.get_traced_memory()[0] - before < 1_000_000

    gc.disable()
    tracemalloc.start()
    try:
        run(main)
    finally:
        tracemalloc.stop()
        gc.enable()


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


def test_a_client_that_has_its_response_may_go_on_before_the_handler_is_done() -> None:
    async def main() -> None:
        async with serving() as (site, _, port):
            client = await Client.connect(port)
            client.send(post("/lingering"))
            assert (await client.response())[2] == b"sent"
            client.send(post("/echo", b"x" * 1_000_000))
            for _ in range(100):  # while the server reads as much of it as it wants
                await asyncio.sleep(0)
            site.release.set()
            assert (await client.response())[2] == b"x" * 1_000_000
            client.send(get("/hello"))
            assert (await client.response())[2] == b"hello"
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
        async with serving(replace(CONFIG, write_timeout_s=0.2)) as (site, server, port):
            client = await Client.connect(port)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(b"GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while not site.num_big:
                await asyncio.sleep(0.01)
            while server.num_connections:
                await asyncio.sleep(0.01)
            client.writer.transport.abort()

    run(main)


def test_a_slow_but_living_reader_gets_the_whole_of_a_big_response() -> None:
    async def main() -> None:
        async with serving(replace(CONFIG, write_timeout_s=1.5)) as (_, _, port):
            client = await Client.connect(port)
            client.send(b"GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await client.reader.readuntil(b"\r\n\r\n")
            num_bytes = 0
            while part := await client.reader.read(400_000):
                num_bytes += len(part)
                await asyncio.sleep(0.05)  # of three seconds, in 61 reads or more
            assert num_bytes == 8_000_000
            await client.close()

    run(main)
