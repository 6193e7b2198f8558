"""A router that has a repository and no other model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import orjson
import pytest

from slipstream.router.config.kserve_config import KServeGrpcConfig, TensorMetricsConfig
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.infer.repository_service import RepositoryService
from slipstream.router.main import RouterProgram
from slipstream.router.process.addresses import Addresses
from slipstream.router.router import Router
from tests.support.router.raw_client import Client


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Router, int]]:
    """A router with an empty repository, and its HTTP port."""
    async with started(folder) as (router, addresses):
        yield router, addresses.http.port


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[tuple[Router, Addresses]]:
    repository = RepositoryConfig(
        (str(folder),), grpc=KServeGrpcConfig(port=0), metrics=TensorMetricsConfig(port=0, gpu=False)
    )
    router = Router(
        RouterConfig(HttpConfig(port=0)), [], "token", repository=repository, instances_path=folder / "instances.sock"
    )
    addresses = await router.start()
    try:
        await router.wait_loaded()
        assert addresses.repository is not None
        assert None not in (addresses.repository.grpc, addresses.repository.metrics)
        yield router, addresses
    finally:
        await router.stop()


async def got(port: int, path: str, accept: str = "*/*") -> tuple[int, bytes]:
    client = await Client.connect(port)
    try:
        client.send(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n".encode())
        status, _, body = await client.response()
        return status, body
    finally:
        await client.close()


def test_it_is_ready_and_says_what_it_serves(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (_, port):
            assert (await got(port, "/health/ready"))[0] == 200
            assert orjson.loads((await got(port, "/v1/models"))[1]) == {"object": "list", "data": []}
            status: dict[str, Any] = orjson.loads((await got(port, "/cluster/status"))[1])
            assert (status["ready"], status["models"]) == (True, {})
            repository = status["repository"]
            assert (repository["ready"], repository["models"]) == (True, [])
            home: dict[str, Any] = orjson.loads((await got(port, "/"))[1])
            assert home["links"]["tensors"] == "v2"
            page = (await got(port, "/", "text/html"))[1].decode()
            assert "<code>v2/models</code>" in page
            assert "v1/chat/completions" not in page

    asyncio.run(main())


def test_it_is_unready_by_both_protocols_while_it_leaves_and_drains(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as (router, addresses):
            assert addresses.repository is not None
            port = addresses.http.port
            async with grpc.aio.insecure_channel(str(addresses.repository.grpc)) as channel:
                assert await is_ready_by_grpc(channel)
                assert (await got(port, "/v2/health/ready"))[0] == 200
                router.leave()
                assert (await got(port, "/v2/health/ready")) == (400, b"")
                assert not await is_ready_by_grpc(channel)
                await router.drain(1.0)
                assert not await is_ready_by_grpc(channel)

    asyncio.run(main())


async def is_ready_by_grpc(channel: grpc.aio.Channel) -> bool:
    """What both readiness calls say."""
    server_ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady", None, None)
    health = channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
    ready, serving_status = await server_ready(b"") == b"\x08\x01", await health(b"") == b"\x08\x01"
    assert ready == serving_status
    return ready


def test_a_request_to_a_language_model_is_a_404_that_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (_, port):
            client = await Client.connect(port)
            body = b'{"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}'
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            client.send(head.encode() + body)
            status, _, answer = await client.response()
            await client.close()
            assert status == 404
            assert orjson.loads(answer)["error"]["code"] == "model_not_found"

    asyncio.run(main())


def test_a_fault_at_the_start_of_the_models_ends_the_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(_: RepositoryService) -> None:
        raise KeyError("what was forgotten")

    async def main() -> None:
        with pytest.raises(KeyError, match="what was forgotten"):
            async with asyncio.timeout(10.0), serving(tmp_path):
                pass

    monkeypatch.setattr(RepositoryService, "start", start)
    asyncio.run(main())


def test_a_router_needs_a_model_or_a_repository() -> None:
    with pytest.raises(ValueError, match="at least one model, or a repository"):
        Router(RouterConfig(), [], "token")
    with pytest.raises(ValueError, match="either model or models must be given"):
        RouterProgram("token")


def test_a_repository_is_served_by_one_process() -> None:
    with pytest.raises(ValueError, match="frontends must be 1 where there is a repository, got 2"):
        Router(RouterConfig(frontends=2), [], "token", repository=RepositoryConfig(("/r",)))
