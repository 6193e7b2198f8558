"""Requests of tensors that a router has left to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import orjson
import pytest

from slipstream.router.api.exchange_context import ApiExchange, ExchangeContext
from slipstream.router.api.kserve.http.kserve_api import KServeApi
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.config.kserve_config import KServeHttpConfig
from slipstream.router.config.router_config import HttpConfig
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.http.reader import Request
from slipstream.router.tensor_memory.region_pool import RegionPool
from tests.router.api.kserve.test_large_tensors import RAW, large_request
from tests.support.router.fake_cluster import run
from tests.support.router.fake_tensor_service import FakeTensorService, keep
from tests.support.router.kserve_site import AB, ADD_SUB, models_of_the_site, request_bytes
from tests.support.router.raw_client import Client


@pytest.fixture
def holder() -> Iterator[SocketHolder]:
    holder = SocketHolder()
    yield holder
    holder.close()


@pytest.fixture
def pool() -> Iterator[RegionPool]:
    with RegionPool(64 << 20) as pool:
        yield pool
        assert pool.usage.num_leases == 0


async def router(holder: SocketHolder, pool: RegionPool, models: FakeTensorService) -> tuple[FailoverServer, int]:
    api = KServeApi(KServeServer(models, models), pool, KServeHttpConfig())

    async def handle(request: Request, exchange: ApiExchange) -> None:
        exchange.error_form = api.error_form
        await api(request, exchange)

    failover = await asyncio.to_thread(FailoverSession.of_holder, holder.path)
    assert failover is not None
    http = HttpConfig(port=0)
    server = FailoverServer(http, handle, ExchangeContext, failover, body_places=api.body_places)
    return server, await server.start()


def kept_models() -> FakeTensorService:
    """All of them wait for ever."""
    models = models_of_the_site()
    for name in models.answers:
        models.answers[name] = keep
    return models


async def left_to_the_next(
    holder: SocketHolder, pool: RegionPool, sent: list[bytes], *, is_whole: bool = True
) -> Client:
    """A client whose request one router has begun, or was reading, when it ended."""
    models = kept_models()
    first, port = await router(holder, pool, models)
    client = await Client.connect(port)
    for piece in sent:
        client.send(piece)
        await client.writer.drain()
        await asyncio.sleep(0.002)
    while is_whole and not models.running:
        await asyncio.sleep(0)
    await first.stop()
    return client


def test_an_inference_is_done_by_the_next_router(holder: SocketHolder, pool: RegionPool) -> None:
    body, headers, data = large_request()

    async def main() -> None:
        for request, expected in (
            (request_bytes("POST", ADD_SUB, {"inputs": AB}), b"[1.5,3.0,4.0,5.0]"),
            (request_bytes("POST", RAW, body, headers), data),
        ):
            client = await left_to_the_next(holder, pool, [request])
            second, _ = await router(holder, pool, models_of_the_site())
            await second.take_over()
            status, _, answer = await client.response()
            assert (status, expected in answer) == (200, True)
            await client.close()
            await second.drain(5)
            await second.stop()

    run(main)


def test_a_large_body_that_is_half_there_goes_on_arriving_at_the_next_router(
    holder: SocketHolder, pool: RegionPool
) -> None:
    body, headers, data = large_request()
    whole = request_bytes("POST", RAW, body, headers)
    cuts = [0, 100, 80_000, 600_000]

    async def main() -> None:
        pieces = [whole[begin:end] for begin, end in pairwise(cuts)]
        client = await left_to_the_next(holder, pool, pieces, is_whole=False)
        second, _ = await router(holder, pool, models_of_the_site())
        await second.take_over()
        client.send(whole[cuts[-1] :])
        status, _, answer = await client.response()
        assert (status, answer.endswith(data)) == (200, True)
        await client.close()
        await second.drain(5)
        await second.stop()

    run(main)


def test_a_request_of_a_sequence_is_never_done_twice(holder: SocketHolder, pool: RegionPool) -> None:
    async def main() -> None:
        body = {"inputs": AB, "parameters": {"sequence_id": 4, "sequence_start": True}}
        client = await left_to_the_next(holder, pool, [request_bytes("POST", ADD_SUB, body)])
        models = models_of_the_site()
        second, _ = await router(holder, pool, models)
        await second.take_over()
        status, _, answer = await client.response()
        assert (status, list(orjson.loads(answer))) == (503, ["error"])
        assert models.submitted == []
        await client.close()
        await second.drain(5)
        await second.stop()

    run(main)
