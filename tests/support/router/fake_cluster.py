"""A front with real HTTP, tokenizer and streams over a cluster that is only pretended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import orjson
import uvloop
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from slipstream.router.access.access import Access
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.catalog.model_outputs import ModelOutputs
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.batches_config import BatchesConfig
from slipstream.router.config.router_config import ApiConfig, HttpConfig, RouterConfig
from slipstream.router.config.store_config import StoreConfig
from slipstream.router.front.front import Front
from slipstream.router.http.server import HttpServer
from slipstream.router.model_files.sampling_defaults import PLAIN, SamplingDefaults
from slipstream.router.parsers.parser_names import DETECTED, ParserNames
from slipstream.router.protocol.generation import (
    AdmissionError,
    EarlyEnd,
    GenerateRequest,
    GenerationError,
    GenerationFinish,
    Usage,
)
from slipstream.router.protocol.messages import EngineRequest, FinishReason, TokenLogprob, unpack_ids
from slipstream.router.registry.worker_abilities import NO_ABILITIES, WorkerAbilities
from slipstream.router.registry.worker_profile import RoleProfile
from slipstream.router.requests.history import RequestRecord, Timeline
from slipstream.router.requests.rejections import RejectedRequest
from slipstream.router.requests.stream import GenerationStream, Handouts
from slipstream.router.status.status import Snapshot, Totals
from slipstream.router.text.tokenizer import Tokenizer, TokenizerFiles
from slipstream.workers.mock.mock_scores import prompt_scores

MODEL = "demo"
MODEL_DIR = Path(__file__).parents[3] / "models" / "slipstream-demo"
MAX_MODEL_LEN = 512
END = 3  # <|end|>, a stop token of the demo model


@dataclass
class Script:
    """What a request gets. `hold_at`: the index of the token before which the cluster waits for `release`."""

    token_ids: list[int]
    reason: FinishReason = "length"
    stop_token_id: int | None = None
    error: GenerationError | None = None
    num_cached_tokens: int = 0
    hold_at: int | None = None
    tokens_a_delta: int = 1


MOCK_VOCABULARY = 1000  # of the log-probabilities of prompts


@dataclass
class FakeService:
    """Plays `script` to every request, cut at its max_tokens; remembers requests and cancellations."""

    script: Callable[[GenerateRequest], Script]
    max_model_len: int | None = MAX_MODEL_LEN
    refusal: AdmissionError | None = None
    versions: tuple[str, ...] = ()
    abilities: WorkerAbilities = NO_ABILITIES
    worker_port: None = None
    requests: list[GenerateRequest] = field(default_factory=list)
    streams: dict[str, GenerationStream] = field(default_factory=dict)
    records: dict[str, RequestRecord] = field(default_factory=dict)
    refused: list[RejectedRequest] = field(default_factory=list)
    turns: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # tools that answers call
    cancelled: dict[str, asyncio.Event] = field(default_factory=dict)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    submitted: asyncio.Event = field(default_factory=asyncio.Event)
    some_cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    snapshot_value: Snapshot = field(default_factory=lambda: Snapshot({}, 0, {}, (), Totals()))
    handouts: Handouts = field(default_factory=Handouts)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def submit(self, request: GenerateRequest) -> GenerationStream:
        if self.refusal is not None:
            raise self.refusal
        assert isinstance(request.prompt_ids, bytes)
        now = time.monotonic()
        num_prompt_tokens = len(unpack_ids(request.prompt_ids))
        record = RequestRecord(request.request_id, "", 0, num_prompt_tokens, Timeline(now, placed=now))
        stream = GenerationStream(record, self._cancel, self.handouts)
        assert request.request_id not in self.streams, "a request id came twice"
        self.requests.append(request)
        self.streams[request.request_id] = stream
        self.records[request.request_id] = record
        task = asyncio.create_task(self._play(request, stream, record, self.script(request)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.submitted.set()
        return stream

    def versions_of(self, model: str) -> tuple[str, ...]:
        return self.versions

    def shares_of(self, model: str) -> dict[str, float]:
        return dict.fromkeys(self.versions, 1.0)

    def abilities_of(self, model: str) -> WorkerAbilities:
        return self.abilities

    def max_model_len_of(self, model: str) -> int | None:
        return self.max_model_len

    def note_refused(self, refused: RejectedRequest) -> None:
        self.refused.append(refused)

    def turn_ended(self, model: str, request_id: str, tools: Sequence[str]) -> None:
        self.turns.append((request_id, tuple(tools)))

    @property
    def models(self) -> tuple[str, ...]:
        return (MODEL,)

    def worker_profiles_of(self, model: str) -> tuple[RoleProfile, ...]:
        return ()

    def snapshot_of(self, model: str) -> Snapshot:
        return self.snapshot_value

    @property
    def history(self) -> Self:
        return self

    def get(self, request_id: str) -> RequestRecord | None:
        return self.records.get(request_id)

    def latest(self) -> Iterator[RequestRecord]:
        return reversed(self.records.values())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _play(
        self, request: GenerateRequest, stream: GenerationStream, record: RequestRecord, script: Script
    ) -> None:
        token_ids = script.token_ids[: request.sampling.max_tokens]
        engine_request = EngineRequest(request.request_id, 0, request.packed_prompt(), b"", request.sampling)
        for message in prompt_scores(engine_request, MOCK_VOCABULARY):
            stream.deliver_scores(message.scores)
        for i in range(0, len(token_ids), script.tokens_a_delta):
            if script.hold_at is not None and i >= script.hold_at:
                await self.release.wait()
            await asyncio.sleep(0)
            if stream.finish is not None:
                return
            record.timeline.mark("first_token", time.monotonic())
            part = tuple(token_ids[i : i + script.tokens_a_delta])
            is_last = i + len(part) >= len(token_ids)
            stream.deliver(part, self._logprobs(request, part))
            if is_last and script.error is None:
                break
        if script.hold_at is not None and script.hold_at >= len(token_ids):
            await self.release.wait()
        if stream.finish is None:
            reason: FinishReason = "error" if script.error else script.reason
            self._end(record, stream, reason, len(token_ids), script)

    def _end(
        self,
        record: RequestRecord,
        stream: GenerationStream,
        reason: FinishReason,
        num_tokens: int,
        script: Script | None,
    ) -> None:
        cached = script.num_cached_tokens if script else 0
        usage = Usage(record.num_prompt_tokens, num_tokens, cached)
        record.timeline.mark("finished", time.monotonic())
        record.finish = GenerationFinish(
            reason, usage, script.stop_token_id if script else None, script.error if script else None
        )
        stream.end(record.finish)

    def _cancel(self, request_id: str, reason: EarlyEnd) -> None:
        self._end(self.records[request_id], self.streams[request_id], reason, 0, None)
        self.cancelled.setdefault(request_id, asyncio.Event()).set()
        self.some_cancelled.set()

    @staticmethod
    def _logprobs(request: GenerateRequest, token_ids: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
        count = request.sampling.logprobs
        if count is None:
            return ()
        return tuple(
            TokenLogprob(-0.5, tuple((token_id + k, -0.5 - k) for k in range(count))) for token_id in token_ids
        )


class FrontUnderTest:
    """A running front and ways to talk to it."""

    def __init__(self, service: FakeService, tokenizer: Tokenizer, server: HttpServer, port: int) -> None:
        self.service = service
        self.tokenizer = tokenizer
        self.server = server
        self.port = port
        self.unready: str | None = None

    async def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """One request on its own connection. `body`: bytes as they are, anything else as JSON."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        fields = {"Host": "x", "Connection": "close", "Content-Length": str(len(data)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
        answer = await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        raw_head, _, rest = answer.partition(b"\r\n\r\n")
        lines = raw_head.decode("latin-1").split("\r\n")
        got = dict(line.lower().split(": ", 1) for line in lines[1:])
        return int(lines[0].split()[1]), got, unchunk(rest) if "transfer-encoding" in got else rest

    async def post(self, path: str, **fields: object) -> tuple[int, dict[str, str], bytes]:
        return await self.request("POST", path, {"model": MODEL, **fields})


def unchunk(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return body


def events_of(body: bytes) -> list[dict[str, object] | str]:
    """The data of a stream's events; JSON, or the word [DONE]."""
    events: list[dict[str, object] | str] = []
    for block in body.decode().split("\n\n")[:-1]:
        assert block.startswith("data: ")
        events.append("[DONE]" if block == "data: [DONE]" else orjson.loads(block[6:]))
    return events


def say(tokenizer: Tokenizer, text: str, **fields: object) -> Callable[[GenerateRequest], Script]:
    """A cluster that always says `text`."""
    token_ids = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    return lambda request: Script(list(token_ids), **fields)  # type: ignore[arg-type]


API = ApiConfig()
HTTP = HttpConfig(port=0)
BATCHES = BatchesConfig()


@contextlib.asynccontextmanager
async def front(
    text: str = "Hello wörld 🙂, this is it.",
    *,
    api: ApiConfig = API,
    http: HttpConfig = HTTP,
    chat_template: str | None = None,
    model_dir: Path = MODEL_DIR,
    defaults: SamplingDefaults = PLAIN,
    parsers: ParserNames = DETECTED,
    store: Path | StoreConfig | None = None,
    keys: Path | None = None,
    frontends: int = 1,
    batches: BatchesConfig = BATCHES,
    **script: object,
) -> AsyncIterator[FrontUnderTest]:
    """A front whose cluster says `text`. `chat_template` replaces the model's. `store`: where it stores what it is to;
    None: nowhere. `keys`: the file of the API keys."""
    with ThreadPoolExecutor(1) as pool:
        files = TokenizerFiles.read(model_dir)
        tokenizer = Tokenizer(replace(files, chat_template=chat_template or files.chat_template), pool)
        service = FakeService(say(tokenizer, text, **script))
        under_test: FrontUnderTest
        access = Access(AccessConfig(str(keys)) if keys is not None else None, pool)
        access.open()
        handler = Front(
            Catalog.of([ServedModel(MODEL, tokenizer, defaults, outputs=ModelOutputs.of(tokenizer, {}, parsers))]),
            service,
            lambda *_: under_test.unready,
            lambda: under_test.server.num_connections,
            RouterConfig(http, api=api, store=store_config(store), frontends=frontends, batches=batches),
            access,
        )
        server = HttpServer(http, handler, ExchangeContext)
        port = await server.start()
        under_test = FrontUnderTest(service, tokenizer, server, port)
        cleanup = contextlib.AsyncExitStack()
        handler.open(cleanup)
        try:
            yield under_test
        finally:
            await server.stop()
            await cleanup.aclose()
            await access.close()
            assert all(stream.finish is not None for stream in service.streams.values()), "a stream was left running"
            await service.close()


def store_config(store: Path | StoreConfig | None) -> StoreConfig:
    return store if isinstance(store, StoreConfig) else StoreConfig(directory=None if store is None else str(store))


@contextlib.asynccontextmanager
async def openai_client(under_test: FrontUnderTest) -> AsyncIterator[AsyncOpenAI]:
    """The real client, without its retries."""
    url = f"http://127.0.0.1:{under_test.port}/v1"
    http_client = DefaultAsyncHttpxClient(verify=False)  # to read all certificates takes 30 ms of a core
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=10, http_client=http_client) as client:
        yield client


def run(main: Callable[[], Awaitable[None]], deadline_s: float = 30.0) -> None:
    """Run a test on uvloop, as the router does."""

    async def bounded() -> None:
        async with asyncio.timeout(deadline_s):
            await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
