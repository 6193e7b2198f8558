"""A large response goes to the connection piece by piece."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from slipstream.router.http.exchange import SENT_AT_ONCE_BYTES, UNSENT_BYTES, Exchange
from slipstream.router.http.reader import Request
from tests.support.router.in_loop import in_loop


@dataclass
class SlowSink:
    """A connection whose client reads a piece only when `read` is called."""

    exchange: Exchange[None] | None = None
    sent: list[bytes | memoryview] = field(default_factory=list)
    limit_bytes: int = UNSENT_BYTES
    date: str = ""
    draining: bool = False
    client_address: str = ""

    def send(self, data: bytes | memoryview) -> None:
        self.sent.append(data)
        if self.exchange is not None and len(data) > self.limit_bytes:
            self.exchange.pause()

    def abort(self) -> None:
        raise AssertionError("nothing is wrong")

    def limit_unsent(self, max_bytes: int) -> None:
        self.limit_bytes = max_bytes


@in_loop
async def test_the_end_of_a_large_response_is_not_waited_for_so_that_the_next_request_cannot_overtake_it() -> None:
    sink = SlowSink()
    exchange = Exchange(Request("GET", "/", "", {}, b"", keep_alive=True, http10=False), sink, None)
    sink.exchange = exchange
    body = bytes(range(256)) * (SENT_AT_ONCE_BYTES // 256) * 2
    responding = asyncio.create_task(exchange.respond_in_parts(200, [b"head", memoryview(body)], "text/plain"))
    while not exchange.ended:
        await asyncio.sleep(0)
        if exchange.congested and not exchange.ended:
            exchange.resume()
    await asyncio.sleep(0)
    assert responding.done()
    assert b"".join(sink.sent[1:]) == b"head" + body
    assert isinstance(sink.sent[-1], bytes)  # the memory of the parts is free
    assert len(sink.sent[-1]) == UNSENT_BYTES
