"""The live state of a cluster as an event stream, of a router alone and of one with front processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from slipstream.router.access.api_key import digest_of
from slipstream.router.api.exchange_context import ApiRoutes, ExchangeContext
from slipstream.router.api.ui.live_pages import LIVE_PATH, LiveStream
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.router_config import HttpConfig
from slipstream.router.http.server import HttpServer
from slipstream.router.process.addresses import Endpoint
from tests.router.test_http_router import ask, completion
from tests.support.router.fake_cluster import MODEL, run
from tests.support.router.routing import routing, until

FAST_S = 0.02


class Follower:
    """A client that applies the events that it reads."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.shown: dict[str, Any] = {}

    async def next_event(self) -> str:
        name = ""
        async for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            if line.startswith("data: "):
                body = orjson.loads(line.removeprefix("data: "))
                self.shown = body["set"] if name == "whole" else self.shown | body["set"]
                for key in body.get("removed", ()):
                    del self.shown[key]
                return name
        return "end"


@contextlib.asynccontextmanager
async def following(at: Endpoint, key: str = "") -> AsyncIterator[Follower]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx.AsyncClient(base_url=f"http://{at}", headers=headers, timeout=20) as client,
        client.stream("GET", LIVE_PATH) as stream,
    ):
        assert stream.status_code == 200, await stream.aread()
        assert stream.headers["content-type"].startswith("text/event-stream")
        yield Follower(stream.aiter_lines())


@pytest.mark.parametrize("fronts", [1, 2])
def test_a_reader_gets_the_whole_and_then_what_changes(fronts: int) -> None:
    async def main() -> None:
        async with routing(fronts=fronts) as (_, addresses, worker), following(addresses.http) as follower:
            assert await follower.next_event() == "whole"
            assert follower.shown["router"]["ready"] is True
            shown = follower.shown["worker/decode-0"]
            assert (shown["role"], shown["model"], shown["max_slots"]) == ("decode", MODEL, 8)
            before = follower.shown[f"model/{MODEL}"]["totals"]["output_tokens"]  # of the first tokens at the start
            assert (await ask(addresses.http, "POST", "/v1/completions", completion(max_tokens=3)))[0] == 200
            while follower.shown[f"model/{MODEL}"]["totals"]["output_tokens"] < before + 3:
                assert await follower.next_event() == "changes"
            worker.leave()
            while "worker/decode-0" in follower.shown:
                assert await follower.next_event() == "changes"

    run(main, deadline_s=110)


@pytest.mark.parametrize("fronts", [1, 2])
def test_a_stream_needs_the_key_of_an_administrator_and_ends_with_the_server(tmp_path: Path, fronts: int) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        f"keys:\n- {{name: boss, sha256: {digest_of(b'boss').hex()}, admin: true}}\n"
        f"- {{name: user, sha256: {digest_of(b'user').hex()}}}\n"
    )

    async def main() -> None:
        async with routing(AccessConfig(str(keys)), fronts=fronts) as (router, addresses, _):
            async with httpx.AsyncClient(base_url=f"http://{addresses.http}") as client:
                assert (await client.get(LIVE_PATH)).status_code == 401
                assert (await client.get(LIVE_PATH, headers={"Authorization": "Bearer user"})).status_code == 403
                assert (await client.head(LIVE_PATH, headers={"Authorization": "Bearer boss"})).status_code == 200
            async with following(addresses.http, "boss") as follower:
                assert await follower.next_event() == "whole"
                draining = asyncio.create_task(router.drain(20))
                while await follower.next_event() != "end":
                    pass
                await draining

    run(main, deadline_s=110)


class Readings:
    """Entries that change with every reading."""

    def __init__(self, size: int = 1) -> None:
        self.num = 0
        self._size = size

    async def __call__(self) -> dict[str, bytes]:
        self.num += 1
        return {"count": orjson.dumps(self.num), "text": orjson.dumps("x" * self._size + str(self.num))}


@contextlib.asynccontextmanager
async def streaming(readings: Readings) -> AsyncIterator[tuple[LiveStream, Endpoint]]:
    stream, routes = LiveStream(readings, FAST_S), ApiRoutes()
    routes.add("GET", LIVE_PATH, stream.serve)
    server = HttpServer(HttpConfig(port=0), routes, ExchangeContext)
    at = Endpoint("127.0.0.1", await server.start())
    try:
        yield stream, at
    finally:
        await server.stop()


def test_the_state_is_read_once_for_all_readers_and_not_at_all_without_one() -> None:
    async def main() -> None:
        readings = Readings()
        async with streaming(readings) as (stream, at):
            await asyncio.sleep(3 * FAST_S)
            assert readings.num == 0
            async with contextlib.AsyncExitStack() as stack:
                followers = [await stack.enter_async_context(following(at)) for _ in range(5)]
                for _ in range(4):
                    await asyncio.gather(*(follower.next_event() for follower in followers))
                assert stream.feed.num_readers == 5
                assert readings.num <= 10  # as for one
            await until(lambda: stream.feed.num_readers == 0)
            before = readings.num
            await asyncio.sleep(3 * FAST_S)
            assert readings.num == before
            async with following(at) as again:
                assert await again.next_event() == "whole"

    run(main)


def test_a_reader_that_does_not_read_holds_nothing_up_and_gets_the_whole_when_it_goes_on() -> None:
    async def main() -> None:
        readings = Readings(size=400_000)
        async with streaming(readings) as (stream, at):
            reader, writer = await asyncio.open_connection(at.host, at.port, limit=1000)
            writer.write(f"GET {LIVE_PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await until(lambda: readings.num > 60)  # 24 MB have gone by
            async with following(at) as follower:
                assert await follower.next_event() == "whole"
                assert await follower.next_event() == "changes"
            await until(lambda: stream.feed.num_readers == 1)
            reader._limit = 1 << 24
            names = []
            while names.count(b"event: whole\n") < 2:  # the first one, and again after what was missed
                line = await reader.readline()
                if line.startswith(b"event: "):
                    names.append(line)
            assert len(names) < 40  # what it had missed is not kept for it
            writer.close()

    run(main)


def test_a_reading_that_fails_is_the_answer_and_the_next_reader_begins_anew() -> None:
    async def main() -> None:
        class Failing(Readings):
            async def __call__(self) -> dict[str, bytes]:
                if self.num == 0:
                    self.num += 1
                    raise RuntimeError("no state")
                return await super().__call__()

        async with streaming(Failing()) as (stream, at):
            assert (await ask(at, "GET", LIVE_PATH))[0] == 500
            assert stream.feed.num_readers == 0
            async with following(at) as follower:
                assert await follower.next_event() == "whole"

    run(main)
