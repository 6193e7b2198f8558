"""Whatever comes in at the worker port costs at most the connection that it came over: the router lives on, other
workers keep theirs, and requests are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig, RouterConfig
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.protocol.generation import AdmissionError, GenerateRequest
from slipstream.router.protocol.messages import (
    Cancel,
    Credits,
    Failed,
    Generate,
    Hello,
    Ping,
    Pong,
    Prefill,
    Rejected,
    Reserve,
    SamplingParams,
    StepOutput,
    TokenChunk,
    Welcome,
    WorkerMessage,
    pack_ids,
)
from slipstream.router.protocol.wire import MAX_FRAME_BYTES, FrameProtocol, Message, WireError, encode_frame
from tests.router.protocol.test_wire_codec import MESSAGES
from tests.support.router.greetings import make_hello

T = TypeVar("T")
TOKEN = "secret"
CONFIG = RouterConfig(dispatch=DispatchConfig(worker_lease_s=20.0, max_attempts=4, request_timeout_s=30.0))
RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)
LIMIT_S = 60.0  # of a hang: a busy machine takes seconds for what takes tenths of one


def hello(name: str, epoch: int, **changes: Any) -> Hello:
    return replace(make_hello(PeerId(name, epoch), token=TOKEN, max_slots=8, max_model_len=1000), **changes)


class Honest:
    """A decode worker that says `position` as the token of each position."""

    def __init__(self) -> None:
        self.protocol = FrameProtocol(self._received, self._lost)
        self.welcome = asyncio.Event()
        self.is_lost = False
        self._last_seq = 0

    def tell_credits(self, free_slots: int = 8) -> None:
        self.protocol.send(Credits(self._last_seq, free_slots, 100, 1000))

    def _lost(self, reason: Exception | None) -> None:
        self.is_lost = True

    def _received(self, message: Message) -> None:
        match message:
            case Welcome():
                self.tell_credits()
                self.welcome.set()
            case Ping(nonce):
                self.protocol.send(Pong(nonce))
            case Generate(seq, request):
                start, end = len(request.output_ids) // 4, request.sampling.max_tokens
                tokens = tuple(range(start, end))
                chunk = TokenChunk(request.request_id, request.attempt, start, tokens, (), "length")
                self.protocol.send(StepOutput((chunk,)))
                self._last_seq = seq
                self.tell_credits()


class Attacker(asyncio.Protocol):
    """Any bytes, and what comes back."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.heard = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def write(self, data: bytes) -> None:
        """As long as the connection is there."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    async def leave(self) -> None:
        assert self.transport is not None
        self.transport.abort()
        await self.closed.wait()

    def data_received(self, data: bytes) -> None:
        self.heard.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.set()
        self.closed.set()


class Liar:
    """A decode worker that says Welcome's thanks, takes work, and answers it with what `answers` makes of it."""

    def __init__(self, answer: Callable[[Generate | Reserve | Prefill], list[WorkerMessage]]) -> None:
        self.protocol = FrameProtocol(self._received, lambda reason: self.over.set())
        self.over = asyncio.Event()
        self.got_work = asyncio.Event()
        self.welcome = asyncio.Event()
        self._answer = answer

    def _received(self, message: Message) -> None:
        match message:
            case Welcome():
                self.protocol.send(Credits(0, 8, 99, 1000))
                self.welcome.set()
            case Generate() | Reserve() | Prefill():
                for said in self._answer(message):
                    with suppress(WireError):  # what cannot travel
                        self.protocol.send(said)
                self.protocol.send(Failed(message.request.request_id, message.request.attempt, "enough", True))
                self.protocol.send(Credits(message.seq, 8, 99, 1000))
                self.got_work.set()
            case Rejected() | Cancel() | Ping():
                pass


@dataclass
class Port:
    """A router's service on a loop of its own, with one honest worker."""

    loop: asyncio.AbstractEventLoop
    service: GenerationService
    honest: Honest
    errors: list[dict[str, Any]]

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(LIMIT_S):
                return await main

        return self.loop.run_until_complete(bounded())

    async def connect(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        await self.loop.create_connection(make, *self.service.worker_port.address)

    async def attack(self) -> Attacker:
        attacker = Attacker()
        await self.connect(lambda: attacker)
        return attacker

    async def ask(self, max_tokens: int = 5) -> list[int]:
        request = GenerateRequest(f"r{next(NUMBERS)}", pack_ids([7] * 10), SamplingParams(max_tokens=max_tokens))
        tokens: list[int] = []
        with self.service.submit(request) as stream:
            async for delta in stream:
                tokens += [token_id for token_id, _ in delta]
        assert stream.finish is not None
        assert stream.finish.reason in ("length", "stop"), stream.finish
        return tokens

    async def honest_has_room(self, has_room: bool) -> None:
        """Returns when the router knows that the honest worker takes work, or takes none."""
        self.honest.tell_credits(8 if has_room else 0)
        while any(
            w.peer.name == "honest" and (w.free_slots > 0) != has_room for w in self.service.snapshot_of("m").workers
        ):
            await asyncio.sleep(0)

    async def check(self) -> None:
        """The honest worker was not harmed, and nothing in the router raised."""
        assert await self.ask() == [0, 1, 2, 3, 4]
        assert not self.honest.is_lost
        assert self.errors == []
        self.service._models["m"].dispatcher.check_integrity()


NUMBERS = count()


@pytest.fixture
def port() -> Any:
    loop = uvloop.new_event_loop()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: errors.append(context))
    service = GenerationService(CONFIG, models={"m": CONFIG.dispatch}, token=TOKEN)
    loop.run_until_complete(service.start())

    async def join() -> Honest:
        honest = Honest()
        await loop.create_connection(lambda: honest.protocol, *service.worker_port.address)
        honest.protocol.send(hello("honest", 1))
        await honest.welcome.wait()
        return honest

    honest = loop.run_until_complete(join())
    yield Port(loop, service, honest, errors)
    honest.protocol.close()
    loop.run_until_complete(service.close())
    loop.close()


def length(size: int) -> bytes:
    return size.to_bytes(4, "little")


FRAMES = MESSAGES.map(encode_frame)
TRUNCATED = st.tuples(FRAMES, st.integers(0, 60)).map(lambda cut: cut[0][: max(1, len(cut[0]) - cut[1])])
HUGE = st.sampled_from([length(2**32 - 1), length(MAX_FRAME_BYTES + 1), length(MAX_FRAME_BYTES) + b"\x91" * 100])
SPOILED = st.tuples(FRAMES, st.integers(0, 1 << 20), st.integers(0, 255)).map(
    lambda hit: hit[0][: hit[1] % len(hit[0])] + bytes([hit[2]]) + hit[0][hit[1] % len(hit[0]) + 1 :]
)
NESTED = st.integers(1, 5000).map(lambda depth: length(depth + 1) + b"\x91" * depth + b"\x01")
GARBAGE = st.one_of(st.binary(min_size=1, max_size=300), TRUNCATED, HUGE, SPOILED, NESTED, FRAMES)


def test_nothing_that_a_stranger_sends_before_its_hello_harms_anybody(port: Port) -> None:
    @RELAXED
    @given(st.lists(GARBAGE, min_size=1, max_size=4), st.booleans())
    def strikes(pieces: list[bytes], waits: bool) -> None:
        async def main() -> None:
            attacker = await port.attack()
            for piece in pieces:
                attacker.write(piece)
                if waits:
                    await asyncio.sleep(0)
            await port.check()
            await attacker.leave()

        port.run(main())

    strikes()


def test_a_first_frame_that_is_no_hello_ends_the_connection_and_gets_no_welcome(port: Port) -> None:
    @RELAXED
    @given(MESSAGES.filter(lambda message: not isinstance(message, Hello)))
    def strikes(message: Message) -> None:
        async def main() -> None:
            attacker = await port.attack()
            attacker.write(encode_frame(message) + encode_frame(hello("late", 1)))
            await attacker.closed.wait()
            assert not any(worker.peer.name == "late" for worker in port.service.snapshot_of("m").workers)

        port.run(main())

    strikes()
    port.run(port.check())


def test_nothing_that_a_worker_sends_after_its_hello_harms_anybody_else(port: Port) -> None:
    @RELAXED
    @given(st.lists(GARBAGE, min_size=1, max_size=4), st.booleans())
    def strikes(pieces: list[bytes], is_welcome: bool) -> None:
        async def main() -> None:
            attacker = await port.attack()
            # Without room: it gets no work, so that what is asked for meanwhile comes from the honest one.
            attacker.write(encode_frame(hello("attacker", next(NUMBERS) + 2)))
            if is_welcome:
                await attacker.heard.wait()
            for piece in pieces:
                attacker.write(piece)
            await port.check()
            await attacker.leave()
            await port.check()

        port.run(main())

    strikes()


def test_nonsense_about_its_own_requests_ends_the_attempt_and_not_the_request(port: Port) -> None:
    """A worker that takes work and answers it with any message about it. What it says for tokens is taken for tokens;
    but the request ends, once, and those of others are what they were."""
    chunks = st.builds(
        TokenChunk,
        request_id=st.just(""),
        attempt=st.just(0),
        index=st.integers(-5, 20) | st.sampled_from([2**62, -(2**62)]),
        token_ids=st.lists(st.integers(-(2**40), 2**40) | st.integers(0, 100), max_size=5).map(tuple),
        finish_reason=st.sampled_from([None, None, "stop", "length", "abort", "error"]),
        stop_token_id=st.none() | st.integers(-(2**40), 2**40),
        num_cached_tokens=st.integers(-(2**40), 2**40),
    )
    about_it = MESSAGES.filter(lambda message: hasattr(message, "request_id") and isinstance(message, WorkerMessage))

    @RELAXED
    @given(st.lists(chunks | about_it, min_size=1, max_size=5))
    def strikes(messages: list[Any]) -> None:
        def answer(work: Generate | Reserve | Prefill) -> list[WorkerMessage]:
            names = {"request_id": work.request.request_id, "attempt": work.request.attempt}
            said: list[WorkerMessage] = []
            for message in messages:
                if isinstance(message, TokenChunk):
                    said.append(StepOutput((message._replace(**names),)))
                else:
                    said.append(message._replace(**names) if isinstance(message, tuple) else replace(message, **names))
            return said

        async def main() -> None:
            liar = Liar(answer)
            await port.connect(lambda: liar.protocol)
            liar.protocol.send(hello("liar", next(NUMBERS) + 2))
            await liar.welcome.wait()
            await port.honest_has_room(False)
            request = GenerateRequest(f"r{next(NUMBERS)}", pack_ids([7] * 9), SamplingParams(max_tokens=4))
            with port.service.submit(request) as stream:
                await liar.got_work.wait()
                await port.honest_has_room(True)
                received = 0
                async for delta in stream:
                    received += len(delta)
            assert stream.finish is not None
            assert received <= 4
            assert stream.finish.usage.num_output_tokens == received
            assert 0 <= stream.finish.usage.num_cached_tokens <= 9
            liar.protocol.abort()
            await liar.over.wait()
            while any(worker.peer.name == "liar" for worker in port.service.snapshot_of("m").workers):
                await asyncio.sleep(0)
            await port.check()

        port.run(main())

    strikes()


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(Pong(1)),
        encode_frame(StepOutput(())),
        encode_frame(StepOutput((TokenChunk("missing", 0, 0, (1,)),) * 100)),
        encode_frame(Failed("missing", 0, "x" * 1000, True)),
        encode_frame(Credits(0, 1, 1, 1)),
    ],
    ids=["pong", "empty step", "step of strangers", "failed", "credits"],
)
def test_requests_are_served_beside_a_flood(port: Port, frame: bytes) -> None:
    async def main() -> None:
        attacker = await port.attack()
        attacker.write(encode_frame(hello("flood", next(NUMBERS) + 2, role="prefill")))
        await attacker.heard.wait()
        for _ in range(8):
            attacker.write(frame * max(1, 200_000 // len(frame)))
            with suppress(AdmissionError):
                await port.check()
        await attacker.leave()
        await port.check()

    port.run(main())


def test_many_strangers_at_once_are_held_and_let_go(port: Port) -> None:
    async def main() -> None:
        attackers = [await port.attack() for _ in range(300)]
        for number, attacker in enumerate(attackers):
            attacker.write((b"", b"\x05", length(1000), b"\x05\x00\x00\x00hello")[number % 4])
        await port.check()
        for attacker in attackers:
            await attacker.leave()
        await port.check()

    port.run(main())
