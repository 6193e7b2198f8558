"""A real Envoy with the project's configuration before servers that note what they get."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest

from tests.support.clients.free_port import free_port
from tests.support.gateway.envoy_process import CONFIG, envoy, program
from tests.support.gateway.scripted_upstream import scripted_upstream
from tests.support.router.grpc_lab import SERVICE, grpc_lab, infer_request, pb
from tests.support.router.in_loop import in_loop

pytestmark = pytest.mark.timeout(60)


def test_envoy_accepts_the_configuration_as_it_is() -> None:
    command = [program(), "--mode", "validate", "-c", str(CONFIG), "--use-dynamic-base-id"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr[-2000:]


@in_loop
async def test_each_event_of_a_stream_arrives_before_the_next_is_sent(tmp_path: Path) -> None:
    async with (
        scripted_upstream("a") as a,
        envoy(tmp_path, {"slipstream": [(a.port, a.port)]}) as gateway,
        aiohttp.ClientSession() as client,
        client.post(f"{gateway.url}/stream", json={}) as answer,
    ):
        for number in range(20):
            a.events.put_nowait(str(number))
            async with asyncio.timeout(5):
                assert await answer.content.readuntil(b"\n\n") == f"data: {number}\n\n".encode()
        a.events.put_nowait(None)
        assert await answer.content.read() == b""


@in_loop
async def test_a_request_that_a_server_has_received_is_never_sent_again(tmp_path: Path) -> None:
    async with (
        scripted_upstream("a") as a,
        scripted_upstream("b") as b,
        envoy(tmp_path, {"slipstream": [(a.port, a.port), (b.port, b.port)]}) as gateway,
        aiohttp.ClientSession() as client,
    ):
        for path in ("/cut", "/busy"):
            async with client.post(f"{gateway.url}{path}", data=b"x") as answer:
                assert answer.status == 503
            assert len(a.requests) + len(b.requests) == 1
            a.requests.clear()
            b.requests.clear()


@in_loop
async def test_a_server_that_cannot_be_connected_to_costs_no_request(tmp_path: Path) -> None:
    async with scripted_upstream("a") as a:
        servers = [(free_port(), a.port), (a.port, a.port)]  # the first seems healthy, and nothing listens there
        async with (
            envoy(tmp_path, {"slipstream": servers}, num_retries=1) as gateway,
            aiohttp.ClientSession() as client,
        ):
            for _ in range(300):
                async with client.post(f"{gateway.url}/v1/completions", data=b"x") as answer:
                    assert answer.status == 200
        assert len(a.requests) == 300


@in_loop
async def test_ids_traces_and_large_bodies_arrive_as_they_were_sent(tmp_path: Path) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with scripted_upstream("a") as a, envoy(tmp_path, {"slipstream": [(a.port, a.port)]}) as gateway:  # noqa: SIM117
        async with aiohttp.ClientSession() as client:
            headers = {"x-request-id": "mine-1", "traceparent": trace}
            seen = await said(client, gateway.url, headers, io.BytesIO(bytes(32 << 20)))
            assert seen["num_bytes"] == 32 << 20
            assert seen["headers"]["x-request-id"] == "mine-1"
            assert seen["headers"]["traceparent"] == trace
            assert (await said(client, gateway.url, {}, b""))["headers"]["x-request-id"]


@in_loop
async def test_the_header_chooses_the_release(tmp_path: Path) -> None:
    async with scripted_upstream("now") as now, scripted_upstream("next") as following:
        servers = {"slipstream": [(now.port, now.port)], "canary": [(following.port, following.port)]}
        async with envoy(tmp_path, servers) as gateway, aiohttp.ClientSession() as client:
            for value, name in (("canary", "next"), ("stable", "now"), ("", "now")):
                headers = {"x-slipstream-release": value} if value else {}
                assert (await said(client, gateway.url, headers, b""))["name"] == name


@in_loop
async def test_a_server_that_drains_ends_its_streams_and_gets_no_new_requests(tmp_path: Path) -> None:
    async with scripted_upstream("a") as a, scripted_upstream("b") as b:
        servers = {"slipstream": [(a.port, a.port), (b.port, b.port)]}
        async with (
            envoy(tmp_path, servers) as gateway,
            aiohttp.ClientSession() as client,
            client.post(f"{gateway.url}/stream", json={}) as answer,
        ):
            leaving, staying = (a, b) if a.requests else (b, a)
            leaving.is_ready = False
            await gateway.wait_for_healthy("slipstream", 1)
            # Envoy's threads hear of it one after the other.
            await until_only(client, gateway.url, staying.name)
            leaving.events.put_nowait("still here")
            leaving.events.put_nowait(None)
            assert await answer.content.read() == b"data: still here\n\n"


@in_loop
async def test_calls_of_one_grpc_channel_are_spread_over_the_routers(tmp_path: Path) -> None:
    async with grpc_lab() as one, grpc_lab() as other, scripted_upstream("health") as health:
        servers = {"slipstream-grpc": [(one.port, health.port), (other.port, health.port)]}
        async with envoy(tmp_path, servers) as gateway:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
                infer = channel.unary_unary(
                    f"{SERVICE}ModelInfer", pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
                )
                for _ in range(40):
                    assert (await infer(infer_request())).model_name == "add_sub"
            calls = [await num_calls(gateway.admin_port, lab.port) for lab in (one, other)]
            assert sum(calls) == 40
            assert min(calls) >= 5


async def said(
    client: aiohttp.ClientSession, url: str, headers: dict[str, str], body: bytes | io.BytesIO
) -> dict[str, Any]:
    async with client.post(f"{url}/v1/models", data=body, headers=headers) as answer:
        assert answer.status == 200
        found: dict[str, Any] = json.loads(await answer.read())
        return found


async def until_only(client: aiohttp.ClientSession, url: str, name: str, times: int = 30) -> None:
    """Returns when this server has answered so many requests in a row."""
    in_a_row = 0
    while in_a_row < times:
        in_a_row = in_a_row + 1 if (await said(client, url, {}, b""))["name"] == name else 0


async def num_calls(admin_port: int, port: int) -> int:
    """How many requests Envoy has sent to a server."""
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"http://127.0.0.1:{admin_port}/clusters?format=json") as answer,
    ):
        status = await answer.json()
    hosts = [host for one in status["cluster_statuses"] for host in one.get("host_statuses", [])]
    [host] = [host for host in hosts if host["address"]["socket_address"]["port_value"] == port]
    return next(int(stat.get("value", 0)) for stat in host["stats"] if stat["name"] == "rq_total")
