"""Signs of life in an event stream, for proxies that cut connections on which nothing moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from slipstream.router.api.exchange_context import ApiExchange

# A comment (https://html.spec.whatwg.org/multipage/server-sent-events.html, 9.2.7).
PING = b": ping\n\n"


class Pings:
    """While this is open, `ping` is sent after every `every_s` in which no token came; None: never. The first one
    sends the head of the stream, so that a failure after it is an event. `num_tokens` counts those that have come."""

    def __init__(
        self, exchange: ApiExchange, every_s: float | None, num_tokens: Callable[[], int], ping: bytes = PING
    ) -> None:
        self._exchange = exchange
        self._every_s = every_s
        self._num_tokens = num_tokens
        self._ping = ping
        self._num_before = 0  # tokens at the last look
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self._every_s is not None:
            self._look_later(self._every_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self, every_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(every_s, self._look, every_s)

    def _look(self, every_s: float) -> None:
        num_tokens = self._num_tokens()
        if num_tokens == self._num_before and not self._exchange.congested:
            self._exchange.write(self._ping)
        self._num_before = num_tokens
        self._look_later(every_s)
