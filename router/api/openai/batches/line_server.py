"""Serves a line of a batch as if a client had sent it: through the routes, with the limits of its creator's key."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Protocol

from slipstream.router.access.key_ring import KeyRing
from slipstream.router.api.exchange_context import ApiRoutes, ExchangeContext
from slipstream.router.api.held_exchange import HeldExchange
from slipstream.router.api.openai.batches.line_answer import LineAnswer
from slipstream.router.http.http_error import HttpError, internal_error
from slipstream.router.http.reader import Request
from slipstream.router.process.random_bytes import random_bytes

HEADERS = {b"content-type": b"application/json"}

log = logging.getLogger(__name__)


class LineServer(Protocol):
    """What a batch needs of the API. A call that is cancelled ends the generation."""

    async def serve(self, key_digest: str, url: str, body: bytes) -> LineAnswer: ...


class RoutedLines:
    """Sends lines through the routes of this process."""

    def __init__(self, routes: ApiRoutes, keys: KeyRing) -> None:
        self._routes = routes
        self._keys = keys

    async def serve(self, key_digest: str, url: str, body: bytes) -> LineAnswer:
        """Never raises but for a cancellation."""
        request = Request("POST", url, "", dict(HEADERS), body, keep_alive=True, http10=False)
        exchange = HeldExchange(request, ExchangeContext(is_background=True))
        exchange.request_id = random_bytes(16).hex()
        try:
            exchange.context.caller = self._keys.caller_by(key_digest)
            await self._routes(request, exchange)
        except HttpError as error:
            exchange.fail(error)
        except Exception:  # as in `HttpConnection`: the line gets an answer, whatever happened
            log.exception("a line of a batch failed at %s", url)
            exchange.fail(internal_error())
        return LineAnswer(exchange.status, exchange.body, exchange.request_id, retry_after_s(exchange))


def retry_after_s(exchange: HeldExchange) -> float | None:
    """What the answer says in the headers Retry-After and Retry-After-Ms."""
    found = dict(exchange.headers)
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError):
            return float(found[name]) * unit_s
    return None
