"""Requests to endpoints of tensor models that a router has left to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import orjson
import pytest

from slipstream.router.access.access import Access
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.api.tensors.tensor_endpoints import TensorEndpoints
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.config.endpoints_config import ChatEndpoint, EmbeddingsEndpoint, EndpointsConfig
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.front.front import Front
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.tensors.model_spec import TensorSpec
from tests.support.router.endpoint_site import computed, respond
from tests.support.router.fake_cluster import FakeService, Script
from tests.support.router.fake_tensor_service import Answer, FakeTensorService, keep, tensor_model
from tests.support.router.in_loop import in_loop
from tests.support.router.kserve_site import request_bytes
from tests.support.router.raw_client import Client
from tests.support.router.until import until

TEXT, VECTOR = TensorSpec("text", "BYTES", (1,)), TensorSpec("embedding", "FP32", (2,))
RESPONSE = TensorSpec("response", "BYTES", (1,))
CONFIG = EndpointsConfig(embeddings={"m": EmbeddingsEndpoint()}, chat={"talk": ChatEndpoint()})
EMBED = request_bytes("POST", "/v1/embeddings", {"model": "m", "input": "a"})
TALK = {"model": "talk", "messages": [{"role": "user", "content": "a"}], "stream": True}


@pytest.fixture
def holder() -> Iterator[SocketHolder]:
    holder = SocketHolder()
    yield holder
    holder.close()


async def router(holder: SocketHolder, answer: Answer) -> tuple[FailoverServer, FakeTensorService, int]:
    models = FakeTensorService()
    models.add(tensor_model("m", [TEXT], [VECTOR]), answer)
    models.add(tensor_model("talk", [TEXT], [RESPONSE], is_decoupled=True), answer)
    service = FakeService(lambda _: Script([]))
    front = Front(Catalog(), service, lambda *_: None, lambda: 0, RouterConfig(HttpConfig(port=0)))
    front.serve_endpoints(TensorEndpoints(CONFIG, KServeServer(models, models), None, Access(), front.apis.flow.bodies))
    failover = await asyncio.to_thread(FailoverSession.of_holder, holder.path)
    assert failover is not None
    server = FailoverServer(HttpConfig(port=0), front, ExchangeContext, failover)
    return server, models, await server.start()


def test_a_request_whose_answer_has_not_begun_is_answered_by_the_next(holder: SocketHolder) -> None:
    @in_loop
    async def run() -> None:
        first, models, port = await router(holder, keep)
        client = await Client.connect(port)
        client.send(EMBED)
        await until(lambda: bool(models.running))
        await first.stop()
        second, _, _ = await router(holder, computed(lambda text: {"embedding": [3.0, 4.0]}))
        await second.take_over()
        status, _, body = await client.response()
        assert (status, orjson.loads(body)["data"][0]["embedding"]) == (200, pytest.approx([0.6, 0.8]))
        await client.close()
        await second.stop()

    run()


def test_a_stream_that_has_begun_breaks_off(holder: SocketHolder) -> None:
    @in_loop
    async def run() -> None:
        first, models, port = await router(
            holder, lambda submission: respond(submission, {"response": ["one"]}, is_final=False)
        )
        client = await Client.connect(port)
        client.send(request_bytes("POST", "/v1/chat/completions", TALK))
        await until(lambda: bool(models.running))
        begun = await client.reader.readuntil(b"one")
        assert b"200 OK" in begun
        await first.stop()
        second, models, _ = await router(holder, keep)
        await second.take_over()
        assert b"[DONE]" not in await client.reader.read()
        assert not models.submitted
        await client.close()
        await second.stop()

    run()
