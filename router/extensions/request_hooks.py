"""Runs the hooks and the routes of extensions."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes, ExchangeContext
from slipstream.router.api.held_exchange import HeldExchange
from slipstream.router.extensions.extension import (
    CallRefusedError,
    EndedCall,
    Extension,
    ExtensionCall,
    ExtensionReply,
    ExtensionRoute,
)
from slipstream.router.http.http_error import HttpError, internal_error
from slipstream.router.http.reader import Request
from slipstream.router.process.random_bytes import random_bytes

log = logging.getLogger(__name__)


class RequestHooks:
    """`routes` are those that a call may ask."""

    def __init__(self, extensions: Sequence[Extension], routes: ApiRoutes) -> None:
        self._routes = routes
        self._extensions = extensions
        # What is not overridden is not called.
        self._before = [one for one in extensions if type(one).before is not Extension.before]
        self._after = [one for one in extensions if type(one).after is not Extension.after]

    @property
    def is_empty(self) -> bool:
        return not self._before and not self._after

    def add_to(self, routes: ApiRoutes) -> None:
        """Adds their paths. Raises ValueError for one that is taken."""
        for extension in self._extensions:
            for route in extension.routes():
                if routes.has(route.path):
                    raise ValueError(
                        f"router.extensions: {type(extension).__name__} adds {route.path}, which is there already"
                    )
                routes.add(route.method, route.path, partial(self._serve, route), is_described=False)

    async def before(self, request: Request, exchange: ApiExchange) -> ExtensionCall:
        """Lets all of them see a request, and takes over what they have changed. Raises HttpError."""
        call = self._call_of(request, exchange)
        for extension in self._before:
            try:
                await extension.before(call)
            except CallRefusedError as refused:
                raise _error_of(refused) from None
        request.body = call.body
        return call

    def after(self, call: ExtensionCall, status: int, began_s: float) -> None:
        """Shows them a request that has ended."""
        ended = EndedCall(call, status, time.monotonic() - began_s)
        for extension in self._after:
            try:
                extension.after(ended)
            except Exception:  # the client has its answer
                log.exception("%s.after failed", type(extension).__name__)

    async def _serve(self, route: ExtensionRoute, request: Request, exchange: ApiExchange) -> None:
        try:
            reply = await route.handler(self._call_of(request, exchange))
        except CallRefusedError as refused:
            raise _error_of(refused) from None
        exchange.respond(reply.status, reply.body, reply.content_type)

    def _call_of(self, request: Request, exchange: ApiExchange) -> ExtensionCall:
        caller = exchange.context.caller
        return ExtensionCall(
            request.method,
            request.path,
            request.query,
            {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()},
            request.body,
            exchange.request_id,
            caller.tenant(""),
            caller.name,
            partial(self._ask, exchange.context),
        )

    async def _ask(self, context: ExchangeContext, path: str, body: Any) -> ExtensionReply:
        """Through the routes, as if the same caller had sent it. Hooks do not see it."""
        headers = {b"content-type": b"application/json"}
        request = Request("POST", path, "", headers, orjson.dumps(body), keep_alive=True, http10=False)
        exchange = HeldExchange(request, ExchangeContext())
        exchange.request_id = random_bytes(16).hex()
        exchange.context.caller = context.caller
        try:
            await self._routes(request, exchange)
        except HttpError as error:
            exchange.fail(error)
        except Exception:  # the extension gets an answer, whatever happened
            log.exception("a call of an extension failed at %s", path)
            exchange.fail(internal_error())
        return ExtensionReply(exchange.body, exchange.status)


def _error_of(refused: CallRefusedError) -> HttpError:
    kind = "server_error" if refused.status >= 500 else "invalid_request_error"
    return HttpError(refused.status, refused.message, kind=kind, code=refused.code)
