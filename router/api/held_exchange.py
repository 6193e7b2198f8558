"""An exchange without a connection, for a request that another part of the router makes."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.router.api.exchange_context import ApiExchange, ExchangeContext
from slipstream.router.http.exchange import JSON
from slipstream.router.http.reader import Request


class NullSink:
    """Stands in for the connection of an exchange that has none."""

    date = ""
    draining = False
    client_address = ""

    def send(self, data: bytes | memoryview) -> None: ...
    def abort(self) -> None: ...
    def limit_unsent(self, max_bytes: int) -> None: ...


class HeldExchange(ApiExchange):
    """Keeps its one whole response."""

    __slots__ = ("body", "content_type", "headers")

    def __init__(self, request: Request, context: ExchangeContext) -> None:
        super().__init__(request, NullSink(), context)
        self.body = b""
        self.content_type = JSON
        self.headers: tuple[tuple[str, str], ...] = ()

    def respond(
        self, status: int, body: bytes, content_type: str = JSON, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.status, self.body, self.content_type, self.headers = status, body, content_type, tuple(headers)
        self.ended = True
