"""Large tensors over HTTP: they arrive in shared memory and leave from memory of the instances."""

from __future__ import annotations

import asyncio
import logging
import ssl
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from slipstream.router.config.kserve_config import KServeHttpConfig
from slipstream.router.config.router_config import HttpConfig, TlsConfig
from slipstream.router.tensors.tensor import RegionSlice
from tests.support.router.fake_cluster import run
from tests.support.router.hub_server import own_certificate
from tests.support.router.kserve_site import KServeSite, binary_body, given, kserve_site, request_bytes
from tests.support.router.raw_client import Client

RAW = "/v2/models/raw/infer"
NUM_ELEMENTS = 500_000
SMALL_BODIES = HttpConfig(port=0, max_body_mib=1)


def large_request(num_elements: int = NUM_ELEMENTS) -> tuple[bytes, dict[str, str], bytes]:
    """Body, headers and the bytes of the only input, of which the answer is a copy."""
    data = np.arange(num_elements, dtype=np.float32).tobytes()
    head = {
        "inputs": [given("X", "FP32", [num_elements], binary_data_size=len(data))],
        "parameters": {"binary_data_output": True},
    }
    body, headers = binary_body(head, data)
    return body, headers, data


def test_a_large_tensor_arrives_in_shared_memory_whatever_the_limit_for_other_bodies() -> None:
    async def main() -> None:
        async with kserve_site(http=SMALL_BODIES) as site:
            body, headers, data = large_request()
            status, answered, answer = await site.post(RAW, body, headers)
            assert status == 200
            assert answer[int(answered["inference-header-content-length"]) :] == data
            place = site.models.submitted[-1].request.inputs[0].data
            assert isinstance(place, RegionSlice)
            assert place.offset % 64 == 0
            assert (await site.post("/v1/completions", bytes(2 << 20)))[0] == 413

    run(main)


def test_requests_follow_a_large_one_on_the_same_connection() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            body, headers, data = large_request()
            client = await Client.connect(site.port)
            for _ in range(3):
                client.send(request_bytes("POST", RAW, body, headers))
                _, _, answer = await client.response()
                assert answer.endswith(data)
                client.send(request_bytes("GET", "/v2/models/raw"))
                assert (await client.response())[0] == 200
            await client.close()

    run(main)


def test_a_large_body_may_come_in_pieces_of_any_size() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            body, headers, data = large_request(40_000)
            sent = request_bytes("POST", RAW, body, headers) + request_bytes("GET", "/v2")
            cuts = [0, 30, 150, 400, 70_000, 70_001, len(sent) - 60, len(sent) - 20, len(sent)]
            client = await Client.connect(site.port)
            for begin, end in pairwise(cuts):
                client.send(sent[begin:end])
                await client.writer.drain()
                await asyncio.sleep(0.002)  # so that the pieces are read one by one
            assert (await client.response())[2].endswith(data)
            assert (await client.response())[0] == 200
            await client.close()

    run(main)


def test_large_json_and_chunked_bodies_are_moved_to_shared_memory() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            numbers = list(range(20_000))
            answer = await site.json("POST", RAW, {"inputs": [given("X", "FP32", [20_000], numbers)]})
            assert answer["outputs"][0]["data"] == numbers
            assert isinstance(site.models.submitted[-1].request.inputs[0].data, RegionSlice)
            body, headers, data = large_request(20_000)
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            client = await Client.connect(site.port)
            head = f"POST {RAW} HTTP/1.1\r\nHost: x\r\n{lines}Transfer-Encoding: chunked\r\n\r\n".encode()
            client.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            assert (await client.response())[2].endswith(data)
            assert isinstance(site.models.submitted[-1].request.inputs[0].data, RegionSlice)
            await client.close()

    run(main)


def test_the_limit_for_bodies_is_that_of_the_tensor_api_and_is_named() -> None:
    config = KServeHttpConfig(max_input_bytes=2 << 20)

    async def chunked(site: KServeSite, num_bytes: int) -> int:
        client = await Client.connect(site.port)
        client.send(f"POST {RAW} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        body = b'{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}'.ljust(num_bytes)
        client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        status, _, _ = await client.response()
        await client.close()
        return status

    async def main() -> None:
        async with kserve_site(config, http=SMALL_BODIES) as site:
            status, text = await site.error(RAW, bytes(3 << 20))
            assert status == 413
            assert text.startswith(f"request JSON size of {3 << 20} bytes exceeds the maximum allowed input size of")
            status, text = await site.error(RAW, bytes(3 << 20), {"Inference-Header-Content-Length": "0"})
            assert status == 413
            assert text.startswith(f"Raw input has a byte_size ({3 << 20} bytes) that exceeds")
            assert await chunked(site, 2 << 20) == 200
            assert await chunked(site, 3 << 20) == 413

    run(main)


async def nothing_leased(site: KServeSite) -> None:
    while site.pool.usage.num_leases:
        await asyncio.sleep(0)


def test_memory_comes_back_from_clients_that_leave(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with kserve_site() as site:
            body, headers, _ = large_request()
            whole = request_bytes("POST", RAW.replace("raw", "kept"), body, headers)
            client = await Client.connect(site.port)
            client.send(whole[:300_000])
            while not site.pool.usage.num_leases:
                await asyncio.sleep(0)
            await client.close()
            await nothing_leased(site)
            status, text = await site.error("/v2/models/nope/infer", body, headers)
            assert (status, text) == (404, "Request for unknown model: 'nope' is not found")
            assert (await site.error("/v2/models/add_sub/infer", body, headers))[0] == 400
            await nothing_leased(site)
            body, headers, _ = large_request(4_000_000)
            client = await Client.connect(site.port)
            client.send(request_bytes("POST", RAW, body, headers))
            await client.reader.readexactly(1000)  # of an answer that is longer than what sockets hold
            client.writer.transport.abort()
            await nothing_leased(site)
            while site.server.num_connections:
                await asyncio.sleep(0)

    run(main)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_body_that_finds_no_memory_is_refused() -> None:
    async def main() -> None:
        async with kserve_site(pool_bytes=3 << 20) as site:
            body, headers, _ = large_request(500_000)
            held = site.pool.allocate(2 << 20)
            assert await site.error(RAW, body, headers) == (503, f"There is no memory for a body of {len(body)} bytes.")
            held.release()
            assert (await site.post(RAW, body, headers))[0] == 200

    run(main)


def test_a_promised_body_takes_up_no_memory_and_one_of_json_is_bounded_at_its_head() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            for header in ("", "Inference-Header-Content-Length: 100\r\n"):
                client = await Client.connect(site.port)
                client.send(f"POST {RAW} HTTP/1.1\r\nHost: x\r\nContent-Length: {65 << 20}\r\n{header}\r\n{{".encode())
                assert (await client.response())[0] == 413  # the pool has 64 MiB
                await client.close()
            client = await Client.connect(site.port)
            client.send(f"POST {RAW} HTTP/1.1\r\nHost: x\r\nContent-Length: {60 << 20}\r\n{header}\r\n{{".encode())
            while not site.pool.usage.num_leases:
                await asyncio.sleep(0)
            assert site.pool.usage.reserved_bytes <= 8 << 20
            await client.close()
            await nothing_leased(site)

    run(main)


def test_connections_that_promise_much_and_send_little_take_no_room_from_others() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            head = f"POST {RAW} HTTP/1.1\r\nHost: x\r\nContent-Length: {60 << 20}\r\n"
            clients = [await Client.connect(site.port) for _ in range(6)]
            for client in clients:
                client.send(f"{head}Inference-Header-Content-Length: 100\r\n\r\n{{".encode())
            while site.pool.usage.num_leases < len(clients):
                await asyncio.sleep(0)
            assert site.pool.usage.reserved_bytes <= 6 * (5 << 20)
            body, headers, data = large_request(1_000_000)
            assert (await site.post(RAW, body, headers))[2].endswith(data)
            for client in clients:
                await client.close()
            await nothing_leased(site)

    run(main)


def test_a_reader_that_is_slow_gets_all_of_a_large_answer() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            body, headers, data = large_request(2_000_000)
            client = await Client.connect(site.port)
            client.send(request_bytes("POST", RAW, body, headers))
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert b"content-length: 80001" in head
            received = bytearray()
            while len(received) < len(data):
                part = await client.reader.read(100_000)
                received += part
                await asyncio.sleep(0)
            assert bytes(received).endswith(data)
            await client.close()

    run(main)


def test_a_large_body_has_its_time_for_every_mebibyte() -> None:
    async def main() -> None:
        http = HttpConfig(port=0, body_timeout_s=0.5)
        async with kserve_site(http=http) as site:
            body, headers, data = large_request(1_000_000)
            sent = request_bytes("POST", RAW, body, headers)
            client = await Client.connect(site.port)
            for begin in range(0, len(sent), 1 << 20):
                client.send(sent[begin : begin + (1 << 20)])
                await asyncio.sleep(0.15)  # four times, which is longer than the limit
            assert (await client.response())[2].endswith(data)
            client.send(sent[:100_000])
            assert (await client.response())[0] == 408
            await client.close()

    run(main)


def test_a_client_that_asks_first_is_told_to_send_its_body() -> None:
    async def main() -> None:
        async with kserve_site() as site:
            body, headers, data = large_request()
            sent = request_bytes("POST", RAW, body, {**headers, "Expect": "100-continue"})
            head_bytes = len(sent) - len(body)
            client = await Client.connect(site.port)
            client.send(sent[:head_bytes])
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(body)
            assert (await client.response())[2].endswith(data)
            await client.close()

    run(main)


def test_large_tensors_pass_through_tls(tmp_path: Path) -> None:
    async def main() -> None:
        cert, key = own_certificate(tmp_path)
        async with kserve_site(http=HttpConfig(port=0, tls=TlsConfig(str(cert), str(key)))) as site:
            body, headers, data = large_request(2_000_000)
            trusting = ssl.create_default_context(cafile=str(cert))
            client = Client(*await asyncio.open_connection("localhost", site.port, ssl=trusting))
            client.send(request_bytes("POST", RAW, body, headers))
            assert (await client.response())[2].endswith(data)
            await client.close()

    run(main)
