"""Clients that reset their connection at any moment, or do not read: each costs its own requests and no more."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.router_config import DispatchConfig, HttpConfig, RouterConfig
from slipstream.router.http.exchange import UNSENT_BYTES
from slipstream.router.process.addresses import Addresses
from slipstream.router.protocol.messages import (
    Cancel,
    Credits,
    EngineRequest,
    Generate,
    Ping,
    Pong,
    StepOutput,
    TokenChunk,
    Welcome,
)
from slipstream.router.protocol.wire import FrameProtocol, Message
from slipstream.router.router import Router
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, run
from tests.support.router.greetings import make_hello

TOKEN = "secret"
CONFIG = RouterConfig(
    http=HttpConfig(port=0, write_timeout_s=60.0), dispatch=DispatchConfig(worker_lease_s=60.0, max_attempts=1)
)
WORD = 100
NUM_SLOTS = 64


class Talker:
    """A decode worker that says `WORD` as fast as it can, `tokens_a_chunk` at a time, until it is stopped."""

    def __init__(self) -> None:
        self.protocol = FrameProtocol(self._received, lambda reason: None)
        self.welcome = asyncio.Event()
        self.running: dict[str, EngineRequest] = {}
        self.num_cancelled = 0
        self.tokens_a_chunk = 50
        self._last_seq = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self, addresses: Addresses) -> Talker:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self.protocol, addresses.workers.host, addresses.workers.port)
        self.protocol.send(
            make_hello(
                "talker",
                token=TOKEN,
                model=MODEL,
                num_pages=100_000,
                max_slots=NUM_SLOTS,
                max_queued_tokens=1_000_000,
                max_model_len=100_000,
            )
        )
        await self.welcome.wait()
        return self

    def _received(self, message: Message) -> None:
        match message:
            case Welcome():
                self._tell_credits()
                self.welcome.set()
            case Ping(nonce):
                self.protocol.send(Pong(nonce))
            case Generate(seq, request):
                self._last_seq = seq
                self.running[request.request_id] = request
                task = asyncio.create_task(self._speak(request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Cancel(request_id):
                self.num_cancelled += self.running.pop(request_id, None) is not None
                self._tell_credits()

    def _tell_credits(self) -> None:
        self.protocol.send(Credits(self._last_seq, NUM_SLOTS - len(self.running), 100_000, 1_000_000))

    async def _speak(self, request: EngineRequest) -> None:
        index, end = 0, request.sampling.max_tokens
        while index < end and request.request_id in self.running:
            count = min(self.tokens_a_chunk, end - index)
            reason = "length" if index + count == end else None
            chunk = TokenChunk(request.request_id, request.attempt, index, (WORD,) * count, finish_reason=reason)
            self.protocol.send(StepOutput((chunk,)))
            index += count
            await asyncio.sleep(0)
        if self.running.pop(request.request_id, None) is not None:
            self._tell_credits()


class Client:
    """A connection without manners."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, addresses: Addresses, receive_buffer_bytes: int | None = None) -> Client:
        connection = socket.socket()
        connection.setblocking(False)
        if receive_buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(connection, (addresses.http.host, addresses.http.port))
        return cls(*await asyncio.open_connection(sock=connection, limit=4096))

    def reset(self) -> None:
        """RST instead of FIN, whatever is under way."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def stop_reading(self) -> None:
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def read_events(self, count: int) -> None:
        for _ in range(count):
            await self.reader.readuntil(b"data: ")


def request(max_tokens: int, stream: bool = True) -> bytes:
    body = orjson.dumps({"model": MODEL, "prompt": [7] * 5, "max_tokens": max_tokens, "stream": stream})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@asynccontextmanager
async def routing() -> AsyncIterator[tuple[Router, Addresses, Talker]]:
    router = Router(CONFIG, [ModelSource(MODEL, MODEL_DIR)], TOKEN)
    addresses = await router.start()
    try:
        talker = await Talker().join(addresses)
        while (await status(addresses))[0] != 200:
            await asyncio.sleep(0.005)
        yield router, addresses, talker
        talker.protocol.abort()
    finally:
        await router.stop()


async def status(addresses: Addresses, path: str = "/health/ready") -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(addresses.http.host, addresses.http.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def whole_answer(addresses: Addresses, max_tokens: int) -> int:
    """The number of tokens of an answer that is asked for in good manners."""
    client = await Client.connect(addresses)
    client.writer.write(request(max_tokens, stream=False).replace(b"Host: x", b"Host: x\r\nConnection: close"))
    answer = bytearray()
    while data := await client.reader.read(1 << 16):
        answer += data
    client.writer.close()
    usage = orjson.loads(bytes(answer).partition(b"\r\n\r\n")[2])["usage"]
    return int(usage["completion_tokens"])


async def at_rest(addresses: Addresses, talker: Talker) -> None:
    """Returns when no request is left, in the router or at the worker, and no connection but the one that asks."""
    while True:
        state = orjson.loads((await status(addresses, "/cluster/status"))[1])
        if not (state["num_running"] or state["num_waiting"] or talker.running):
            page = (await status(addresses, "/metrics"))[1].decode()
            if "slipstream:http_connections 1.0" in page:
                return
        await asyncio.sleep(0.005)


WHOLE = request(20_000)
# Where a client resets its connection: so many bytes of its request out, or so many events of its answer read.
CUT = st.integers(0, len(WHOLE) - 1).map(lambda size: ("cut", size))
READ = st.sampled_from([0, 1, 2, 30]).map(lambda count: ("read", count))
PIPELINED = st.integers(0, 2).map(lambda count: ("pipelined", count))


def test_clients_that_reset_their_connection_at_any_moment_leave_nothing_behind() -> None:
    async def main() -> None:
        async with routing() as (_, addresses, talker):

            async def strike(kind: str, amount: int, is_whole: bool) -> None:
                client = await Client.connect(addresses)
                match kind:
                    case "cut":  # in the head, or in the body
                        client.writer.write(WHOLE[:amount])
                        await asyncio.sleep(0)
                    case "read":  # before the answer, at its head, in the middle of it
                        client.writer.write(request(20_000, stream=not is_whole))
                        if not is_whole:
                            await client.read_events(amount)
                    case "pipelined":  # after some of several answers, in the next or before it
                        client.writer.write(request(3) * amount + WHOLE + request(3))
                        for _ in range(amount):
                            await client.reader.readuntil(b"[DONE]")
                        if not is_whole:
                            await client.reader.readuntil(b"HTTP/1.1 200")
                client.reset()

            bystander = asyncio.create_task(whole_answer(addresses, 5_000))
            for kind, amount, is_whole in await asyncio.to_thread(draw_strikes):
                await strike(kind, amount, is_whole)
            assert await bystander == 5_000
            await at_rest(addresses, talker)
            assert talker.num_cancelled > 0
            assert await whole_answer(addresses, 7) == 7

    run(main, 60)


def draw_strikes() -> list[tuple[str, int, bool]]:
    """What hypothesis makes of the moments above: edges first and all sizes in between."""
    drawn: list[tuple[str, int, bool]] = []

    @settings(max_examples=80, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(CUT, READ, PIPELINED), st.booleans())
    def draw(moment: tuple[str, int], is_whole: bool) -> None:
        drawn.append((*moment, is_whole))

    draw()
    return drawn


def test_clients_that_do_not_read_hold_up_nobody_and_one_buffer_waits_for_each() -> None:
    """What is more than a buffer waits as tokens, of which there are `max_tokens` at most, and not as text."""
    num_readers, max_tokens = 2, 30_000  # each some megabytes of events: more than the kernel takes off the router

    async def main() -> None:
        async with routing() as (router, addresses, talker):
            talker.tokens_a_chunk = 1
            clients = [await Client.connect(addresses, receive_buffer_bytes=4096) for _ in range(num_readers)]
            for client in clients:
                client.writer.write(request(max_tokens))
                await client.read_events(1)
                client.stop_reading()
            assert await whole_answer(addresses, 2_000) == 2_000
            while talker.running:
                await asyncio.sleep(0.01)
            waiting = sorted(c._transport.get_write_buffer_size() for c in router._server._connections)
            assert waiting[-num_readers] > UNSENT_BYTES / 2  # the bound was reached
            assert waiting[-1] < UNSENT_BYTES + 16 * 1024
            for client in clients:
                client.reset()
            await at_rest(addresses, talker)
            assert await whole_answer(addresses, 7) == 7

    run(main, 100)
