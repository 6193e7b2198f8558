"""What the observer of a connection sees, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from slipstream.router.config.router_config import HttpConfig
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.observer import AnswerPhase, NullObserver
from slipstream.router.http.reader import Request
from slipstream.router.http.server import HttpServer

TIMEOUT_S = 10.0
GET = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"
IDLE, STREAMING, ENDED, CLOSING = AnswerPhase.IDLE, AnswerPhase.STREAMING, AnswerPhase.ENDED, AnswerPhase.CLOSING


class Recorder(NullObserver[str]):
    """Records what it sees, without the bytes."""

    def __init__(self) -> None:
        super().__init__(lambda: "context")
        self.seen: list[object] = []
        self.sent = b""
        self.is_closed = asyncio.Event()

    def received(self, data: bytes, is_ahead: bool) -> None:
        self.seen.append("received ahead" if is_ahead else "received")

    def begun(self) -> str:
        self.seen.append("begun")
        return super().begun()

    def sending(self, data: bytes, phase: AnswerPhase) -> None:
        self.seen.append(phase)
        self.sent += data

    def ended(self, transport: asyncio.Transport, is_idle: bool) -> None:
        self.seen.append("idle" if is_idle else "ended")

    def closed(self, handler: asyncio.Task[None] | None) -> None:
        self.seen.append("closed while it runs" if handler is not None else "closed")
        self.is_closed.set()


async def stream(request: Request, exchange: Exchange[str]) -> None:
    assert exchange.context == "context"
    exchange.start(200, "text/plain")
    exchange.write(b"part")
    exchange.finish(b"end")


async def hang(request: Request, exchange: Exchange[str]) -> None:
    exchange.start(200, "text/plain")
    exchange.write(b"part")
    await asyncio.Event().wait()


def observed(
    parts: list[bytes], until: bytes, handler: Callable[[Request, Exchange[str]], Awaitable[None]] = stream
) -> list[object]:
    """What is seen of a client that sends these parts, the next one after an answer, and leaves after `until` came."""

    async def main() -> Recorder:
        recorder = Recorder()
        server = HttpServer(HttpConfig(port=0), handler, lambda: "")
        server._observer = recorder
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
        answers = b""
        for part in parts:
            writer.write(part)
            answers += await asyncio.wait_for(reader.readuntil(until), TIMEOUT_S)
        writer.close()
        await asyncio.wait_for(recorder.is_closed.wait(), TIMEOUT_S)
        await server.stop()
        assert recorder.sent.startswith(answers)  # each byte was shown before it was sent
        return recorder

    return asyncio.run(main()).seen


@pytest.mark.parametrize("num_requests", [1, 2])
def test_it_sees_each_exchange_from_its_request_to_the_rest_after_it(num_requests: int) -> None:
    parts = [GET % number for number in range(num_requests)]
    exchange = ["received", "begun", STREAMING, ENDED, "idle"]
    assert observed(parts, b"0\r\n\r\n") == [*(exchange * num_requests), "closed"]


def test_it_is_asked_before_a_client_is_asked_for_its_body() -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
    seen = observed([head, b"{}"], b"\r\n\r\n")
    assert seen[:4] == ["received", IDLE, "received", "begun"]


def test_it_sees_that_a_read_held_more_than_one_request() -> None:
    seen = observed([(GET % 1) + (GET % 2)], b"end\r\n0\r\n\r\n")
    assert seen[:5] == ["received", "begun", STREAMING, ENDED, "ended"]


def test_it_sees_that_the_connection_closes_after_a_refusal() -> None:
    assert observed([b"nonsense\r\n\r\n"], b"}}") == ["received", CLOSING, "closed"]


def test_it_sees_that_the_client_leaves_while_the_handler_runs() -> None:
    assert observed([GET % 1], b"part\r\n", hang) == ["received", "begun", STREAMING, "closed while it runs"]
