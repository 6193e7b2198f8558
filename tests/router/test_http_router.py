"""The whole router with real sockets on both sides; workers are played by the test."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import orjson
import pytest
from openai import AsyncOpenAI

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress
from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.router_config import DispatchConfig, HttpConfig, RouterConfig
from slipstream.router.model_files.file_digest import DigestCache, FilesChanged
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.process.addresses import Addresses, Endpoint
from slipstream.router.protocol.messages import (
    Cancel,
    Credits,
    EngineRequest,
    Failed,
    Generate,
    HandedOff,
    Ping,
    Pong,
    Prefill,
    Reserve,
    Reserved,
    Role,
    Start,
    Stats,
    StepOutput,
    TokenChunk,
    Welcome,
)
from slipstream.router.protocol.wire import FrameProtocol, Message
from slipstream.router.registry.service_times import ServiceTimes
from slipstream.router.router import Router
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, events_of, run, unchunk
from tests.support.router.greetings import make_hello

TOKEN = "secret"
CONFIG = RouterConfig(
    http=HttpConfig(port=0), dispatch=DispatchConfig(local_prefill_max_tokens=128, worker_lease_s=60.0, max_attempts=1)
)
WORD = 100  # some token


class PlayedWorker:
    """A worker that says `WORD` until max_tokens, from the second token on only when `may_go_on` is set."""

    def __init__(
        self,
        role: Role,
        addresses: Addresses,
        epoch: int = 1,
        name: str | None = None,
        version: str = "",
        model: str = MODEL,
    ) -> None:
        self.role = role
        self.model = model
        self.version = version
        self.peer = PeerId(name or f"{role}-0", epoch)
        self.endpoint = addresses.workers
        self.seen: list[str] = []
        self.fails = False
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.cancelled = asyncio.Event()
        self.welcome = asyncio.Event()
        self.lost = asyncio.Event()
        self.protocol = FrameProtocol(self._received, lambda reason: self.lost.set())
        self._requests: dict[str, EngineRequest] = {}
        self.requests: list[EngineRequest] = []
        self._num_spent = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self) -> PlayedWorker:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self.protocol, self.endpoint.host, self.endpoint.port)
        self.protocol.send(
            make_hello(
                self.peer,
                self.role,
                token=TOKEN,
                model=self.model,
                max_slots=8,
                max_model_len=1000,
                model_version=self.version,
            )
        )
        await self.welcome.wait()
        return self

    def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.protocol.abort()

    def _received(self, message: Message) -> None:
        self.seen.append(type(message).__name__)
        if isinstance(message, Generate | Reserve | Prefill):
            self._num_spent = message.seq
            self._requests[message.request.request_id] = message.request
            self.requests.append(message.request)
        match message:
            case Welcome():
                self._say_credits()
                self.protocol.send(Stats(0, 0, (("free", 90), ("cached", 10)), (("steps", 3.0), ("leases_held", 0.0))))
                self.welcome.set()
            case Ping(nonce):
                self.protocol.send(Pong(nonce))
            case Generate(request=request) if self.fails:
                self.protocol.send(Failed(request.request_id, request.attempt, "out of luck", retryable=False))
            case Generate(request=request):
                self._speak(request, 0)
            case Reserve(request=request):
                num_pages = -(-len(request.prompt_ids) // 64)
                ticket = HandoffTicket(1, self.peer, (TransferAddress("127.0.0.1", 1),), 0, num_pages, 8, 1, 1, 64)
                self.protocol.send(Reserved(request.request_id, request.attempt, 0, ticket))
            case Prefill(request=request):
                self.protocol.send(StepOutput((TokenChunk(request.request_id, request.attempt, 0, (WORD,)),)))
                self._say_credits()
            case Start(request_id, attempt, _):
                self.protocol.send(HandedOff(request_id, attempt, 1024, 0.01))
                self._speak(self._requests[request_id], 1)
            case Cancel():
                self.cancelled.set()
                self._say_credits()

    def _say_credits(self) -> None:
        self.protocol.send(Credits(self._num_spent, 8, 100, 1000))

    def _speak(self, request: EngineRequest, first: int) -> None:
        async def speak() -> None:
            for index in range(first, request.sampling.max_tokens):
                if index > 0:
                    await self.may_go_on.wait()
                is_last = index + 1 == request.sampling.max_tokens
                reason = "length" if is_last else None
                chunk = TokenChunk(request.request_id, request.attempt, index, (WORD,), finish_reason=reason)
                self.protocol.send(StepOutput((chunk,)))
                await asyncio.sleep(0)
            self._say_credits()

        task = asyncio.create_task(speak())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@contextlib.asynccontextmanager
async def routing(*, has_prefill_pool: bool = False) -> AsyncIterator[tuple[Router, Addresses]]:
    router = Router(CONFIG, [ModelSource(MODEL, MODEL_DIR, has_prefill_pool=has_prefill_pool)], TOKEN)
    addresses = await router.start()
    try:
        yield router, addresses
    finally:
        await router.stop()


class Exchange:
    """A raw request whose answer can be read bit by bit."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def begin(cls, at: Endpoint, method: str, path: str, body: object = None) -> Exchange:
        exchange = cls(*await asyncio.open_connection(at.host, at.port))
        data = b"" if body is None else orjson.dumps(body)
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        exchange.writer.write(head.encode() + data)
        return exchange

    async def end(self) -> tuple[int, bytes]:
        try:
            answer = await self.reader.read()
        finally:
            self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), unchunk(rest) if b"chunked" in head else rest


async def ask(at: Endpoint, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    return await (await Exchange.begin(at, method, path, body)).end()


async def readiness(at: Endpoint) -> str:
    status, body = await ask(at, "GET", "/health/ready")
    if status == 200:
        return "ready"
    assert status == 503
    message = orjson.loads(body)["error"]["message"]
    assert isinstance(message, str)
    return message


async def until_ready(at: Endpoint) -> None:
    while await readiness(at) != "ready":
        await asyncio.sleep(0.002)


def completion(num_prompt_tokens: int = 5, **fields: object) -> dict[str, object]:
    return {"model": MODEL, "prompt": [7] * num_prompt_tokens, **fields}


def test_ready_only_after_a_token_has_been_generated_and_while_a_decode_worker_is_there() -> None:
    async def main() -> None:
        async with routing() as (_, addresses):
            assert (await ask(addresses.http, "GET", "/health/live"))[0] == 200
            assert await readiness(addresses.http) == "Not ready: no decode worker has connected yet."
            worker = PlayedWorker("decode", addresses)
            worker.may_go_on.clear()
            await worker.join()
            while "Generate" not in worker.seen:
                await asyncio.sleep(0)
            assert await readiness(addresses.http) == "Not ready: the first token is still being waited for."
            worker.may_go_on.set()
            await until_ready(addresses.http)
            worker.leave()
            while await readiness(addresses.http) == "ready":
                await asyncio.sleep(0.002)
            assert await readiness(addresses.http) == "Not ready: no decode worker is connected."
            again = await PlayedWorker("decode", addresses, epoch=2).join()
            await until_ready(addresses.http)
            again.leave()

    run(main)


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_where_clients_of_other_servers_ask_they_are_told_whether_it_is_ready(path: str) -> None:
    async def main() -> None:
        async with routing() as (_, addresses):
            assert (await ask(addresses.http, "GET", path))[0] == 503
            worker = await PlayedWorker("decode", addresses).join()
            await until_ready(addresses.http)
            assert (await ask(addresses.http, "GET", path))[0] == 200
            worker.leave()

    run(main)


def test_with_a_prefill_pool_ready_means_that_the_way_over_it_works() -> None:
    async def main() -> None:
        async with routing(has_prefill_pool=True) as (_, addresses):
            decode = await PlayedWorker("decode", addresses).join()
            assert await readiness(addresses.http) == "Not ready: no prefill worker has connected yet."
            assert "Generate" not in decode.seen
            prefill = await PlayedWorker("prefill", addresses).join()
            await until_ready(addresses.http)
            assert prefill.seen.count("Prefill") == 1
            assert "Reserve" in decode.seen
            assert "Generate" not in decode.seen
            for worker in (decode, prefill):
                worker.leave()

    run(main)


def test_a_failed_first_request_is_told_and_tried_again() -> None:
    async def main() -> None:
        async with routing() as (_, addresses):
            worker = PlayedWorker("decode", addresses)
            worker.fails = True
            await worker.join()
            while "out of luck" not in await readiness(addresses.http):
                await asyncio.sleep(0.002)
            worker.fails = False
            another = await PlayedWorker("prefill", addresses).join()  # a worker that joins is a reason to try again
            await until_ready(addresses.http)
            for played in (worker, another):
                played.leave()

    run(main)


@pytest.mark.parametrize("num_prompt_tokens", [5, 300])
def test_tokens_go_through_and_the_way_can_be_asked_for(num_prompt_tokens: int) -> None:
    async def main() -> None:
        async with routing(has_prefill_pool=True) as (_, addresses):
            workers = [await PlayedWorker(role, addresses).join() for role in ("decode", "prefill")]
            await until_ready(addresses.http)
            status, body = await ask(
                addresses.http, "POST", "/v1/completions", completion(num_prompt_tokens, max_tokens=8, stream=True)
            )
            events = events_of(body)
            assert (status, events[-1]) == (200, "[DONE]")
            word = orjson.loads((await ask(addresses.http, "GET", "/v1/models"))[1])
            assert word["data"][0]["max_model_len"] == 1000
            answer_id = events[0]["id"]
            status, body = await ask(addresses.http, "GET", f"/v1/requests/{answer_id}/explain")
            explained = orjson.loads(body)
            assert status == 200
            assert explained["finish"]["reason"] == "length"
            assert (explained["decisions"][0]["prefill"] is None) == (num_prompt_tokens == 5)
            assert explained["decisions"][0]["reason"] in explained["why"]
            assert await way_of(addresses.http, "unknown") is None
            for worker in workers:
                worker.leave()

    run(main)


async def way_of(endpoint: Endpoint, request_id: str) -> str | None:
    """The id of the request that is explained under `request_id`."""
    status, body = await ask(endpoint, "GET", f"/v1/requests/{quote(request_id)}/explain")
    assert status in (200, 404)
    return orjson.loads(body)["request_id"] if status == 200 else None


def test_the_way_is_found_by_the_id_in_the_body_and_by_the_one_in_the_head() -> None:
    async def main() -> None:
        async with routing() as (_, addresses):
            worker = await PlayedWorker("decode", addresses).join()
            await until_ready(addresses.http)
            base_url = f"http://127.0.0.1:{addresses.http.port}/v1"
            async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
                complete = client.completions.with_raw_response.create
                response = await complete(model=MODEL, prompt="x", max_tokens=2)
                answer_id = response.parse().id
                assert await way_of(addresses.http, answer_id) == answer_id
                assert await way_of(addresses.http, response.headers["x-request-id"]) == answer_id

                for _ in range(2):  # the client's own id may come again: then the latest counts
                    own = {"X-Request-Id": "trace/1"}
                    response = await complete(model=MODEL, prompt="x", max_tokens=2, extra_headers=own)
                    assert await way_of(addresses.http, "trace/1") == response.parse().id

                response = await complete(model=MODEL, prompt=["x", "y"], n=2, max_tokens=2)
                answer_id, exchange_id = response.parse().id, response.headers["x-request-id"]
                for asked in (answer_id, exchange_id):
                    assert await way_of(addresses.http, asked) == f"{answer_id}#0"
                    for choice in range(4):
                        assert await way_of(addresses.http, f"{asked}#{choice}") == f"{answer_id}#{choice}"
                    assert await way_of(addresses.http, f"{asked}#4") is None
            worker.leave()

    run(main)


def test_metrics_and_status_tell_of_requests_and_workers() -> None:
    async def main() -> None:
        async with routing(has_prefill_pool=True) as (_, addresses):
            workers = [await PlayedWorker(role, addresses).join() for role in ("decode", "prefill")]
            await until_ready(addresses.http)
            await ask(addresses.http, "POST", "/v1/completions", completion(300, max_tokens=8))
            status, body = await ask(addresses.http, "GET", "/metrics")
            page = body.decode()
            assert status == 200
            for line in (
                f'vllm:generation_tokens_total{{model_name="{MODEL}"}} 8.0',
                f'vllm:prompt_tokens_total{{model_name="{MODEL}"}} 300.0',
                f'vllm:request_success_total{{finished_reason="length",model_name="{MODEL}"}} 1.0',
                f'vllm:time_to_first_token_seconds_count{{model_name="{MODEL}",version=""}} 1.0',
                f'vllm:num_requests_running{{model_name="{MODEL}"}} 0.0',
                'slipstream:workers{model_name="demo",role="decode"} 1.0',
                'slipstream:workers{model_name="demo",role="prefill"} 1.0',
                'slipstream:placements_total{model_name="demo",reason="long_prompt"} 2.0',  # the probe's and ours
                'slipstream:transfers_total{model_name="demo"} 2.0',
                'slipstream:transfer_bytes_total{model_name="demo"} 2048.0',
                'slipstream:worker_pages{model_name="demo",role="decode",state="cached",worker="decode-0"} 10.0',
                'slipstream:worker_leases{model_name="demo",role="decode",worker="decode-0"} 0.0',
                'slipstream:worker_events_total{event="steps",model_name="demo",role="prefill",worker="prefill-0"} 3.0',
                'slipstream:http_responses_total{status="200"}',
            ):
                assert line in page, f"{line}\n{page}"
            status, body = await ask(addresses.http, "GET", "/cluster/status")
            cluster = orjson.loads(body)
            assert (cluster["ready"], cluster["unready_because"], cluster["model"]) == (True, None, MODEL)
            assert {worker["role"] for worker in cluster["workers"]} == {"decode", "prefill"}
            status, body = await ask(addresses.http, "GET", "/cluster/profile")
            roles = {role["role"]: role for role in orjson.loads(body)["roles"]}
            assert list(roles) == ["prefill", "decode"]
            assert roles["decode"]["num_samples"]["transfer"] == 2
            for role in roles.values():
                assert ServiceTimes.from_dict(role["times"]).num_samples("decode") == role["num_samples"]["decode"]
                assert role["num_workers"] == 1
            for worker in workers:
                worker.leave()

    run(main)


def test_a_client_that_leaves_is_cancelled_at_the_worker() -> None:
    async def main() -> None:
        async with routing() as (_, addresses):
            worker = await PlayedWorker("decode", addresses).join()
            await until_ready(addresses.http)
            worker.may_go_on.clear()
            body = completion(max_tokens=50, stream=True)
            exchange = await Exchange.begin(addresses.http, "POST", "/v1/completions", body)
            await exchange.reader.readuntil(b"data: ")
            exchange.writer.close()
            await worker.cancelled.wait()
            worker.leave()

    run(main)


def test_draining_finishes_running_streams_and_refuses_new_clients() -> None:
    async def main() -> None:
        async with routing() as (router, addresses):
            worker = await PlayedWorker("decode", addresses).join()
            await until_ready(addresses.http)
            worker.may_go_on.clear()
            body = completion(max_tokens=9, stream=True)
            exchange = await Exchange.begin(addresses.http, "POST", "/v1/completions", body)
            await exchange.reader.readuntil(b"data: ")
            draining = asyncio.create_task(router.drain(10))
            await asyncio.sleep(0)
            with pytest.raises(ConnectionError):
                await asyncio.open_connection(addresses.http.host, addresses.http.port)
            assert not draining.done()
            worker.may_go_on.set()
            rest = await exchange.reader.read()
            assert b"data: [DONE]" in rest
            await draining
            exchange.writer.close()
            worker.leave()

    run(main)


def test_stopping_ends_running_streams_with_an_error_event() -> None:
    async def main() -> None:
        async with routing() as (router, addresses):
            worker = await PlayedWorker("decode", addresses).join()
            await until_ready(addresses.http)
            worker.may_go_on.clear()
            body = completion(max_tokens=9, stream=True)
            exchange = await Exchange.begin(addresses.http, "POST", "/v1/completions", body)
            await exchange.reader.readuntil(b"data: ")
            await router.stop()
            rest = await exchange.reader.read()
            assert b'"code":"shutting_down"' in rest
            assert b"[DONE]" not in rest
            await worker.lost.wait()
            exchange.writer.close()

    run(main)


def test_what_keeps_the_router_from_starting_is_said_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            config = replace(CONFIG, http=HttpConfig(port=port))
            with pytest.raises(OSError, match="the port is in use"):
                await Router(config, [ModelSource(MODEL, MODEL_DIR)], TOKEN).start()
        with pytest.raises(FileNotFoundError, match=r"tokenizer\.json is missing"):
            await Router(CONFIG, [ModelSource(MODEL, tmp_path)], TOKEN).start()
        model_dir = shutil.copytree(MODEL_DIR, tmp_path / "model")
        manifest = Manifest.read(model_dir, DigestCache(None))
        (model_dir / "chat_template.jinja").write_text("{{ messages }}")
        for fronts in (1, 2):
            with pytest.raises(FilesChanged, match=r"refuses to serve .*chat_template\.jinja has other content now"):
                await Router(
                    replace(CONFIG, frontends=fronts), [ModelSource(MODEL, model_dir, manifests=(manifest,))], TOKEN
                ).start()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)
