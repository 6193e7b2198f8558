"""Calls the hooks of extensions, and serves their routes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes, ExchangeContext
from slipstream.router.api.held_exchange import HeldExchange
from slipstream.router.extensions.extension import (
    CallRefusedError,
    Extension,
    ExtensionCall,
    ExtensionReply,
    ExtensionRoute,
)
from slipstream.router.extensions.hooked_request import ExtensionHook, HookedRequest, error_of
from slipstream.router.http.http_error import HttpError, internal_error
from slipstream.router.http.reader import Request
from slipstream.router.process.random_bytes import random_bytes

log = logging.getLogger(__name__)


class RequestHooks:
    """`routes` are those that a call may ask."""

    def __init__(self, extensions: Sequence[Extension], routes: ApiRoutes) -> None:
        self._routes = routes
        self._extensions = extensions
        self._hooks = [hook for hook in map(ExtensionHook, extensions) if hook.has_before or hook.has_after]

    @property
    def is_empty(self) -> bool:
        return not self._hooks

    def add_to(self, routes: ApiRoutes) -> None:
        """Adds their paths. Raises ValueError for one that is taken."""
        for extension in self._extensions:
            for route in extension.routes():
                if routes.has(route.path):
                    raise ValueError(
                        f"router.extensions: {type(extension).__name__} adds {route.path}, which is there already"
                    )
                routes.add(route.method, route.path, partial(self._serve, route), is_described=False)

    def begin(self, request: Request, exchange: ApiExchange) -> HookedRequest:
        """A request whose caller is known, for the hooks."""
        return HookedRequest(self._hooks, request, self._call_of(request, exchange))

    async def _serve(self, route: ExtensionRoute, request: Request, exchange: ApiExchange) -> None:
        try:
            reply = await route.handler(self._call_of(request, exchange))
        except CallRefusedError as refused:
            raise error_of(refused) from None
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
