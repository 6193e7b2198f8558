"""The trace and logging extensions."""

from __future__ import annotations

from typing import Any

import orjson

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.kserve.http.bodies.json_tensors import from_json
from slipstream.router.api.kserve.http.call_target import CallTarget
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.http.reader import Request
from slipstream.router.tensors.infer_error import InferError

LISTED = "trace_level"  # the one setting that is a list


class SettingCalls:
    """`GET` shows the settings, `POST` changes them and shows them."""

    def __init__(self, server: KServeServer) -> None:
        self._service = server.service
        self._traces = server.traces
        self._logs = server.logs
        self._keep_settings = server.keep_settings

    async def trace(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        if target.name and not self._service.is_ready(target.name):
            raise InferError(f"Request for unknown model : {target.name}")
        if request.method == "POST":
            self._traces.update(settings_in(request), target.name)
            await self._keep_settings()
        shown: dict[str, Any] = dict(self._traces.shown(target.name))
        exchange.respond(
            200, orjson.dumps({name: values if name == LISTED else values[0] for name, values in shown.items()})
        )

    async def logging(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        if request.method == "POST":
            self._logs.update(settings_in(request))
            await self._keep_settings()
        exchange.respond(200, orjson.dumps(self._logs.shown()))


def settings_in(request: Request) -> dict[str, Any]:
    """Raises InferError."""
    fields = from_json(request.body)
    return fields if isinstance(fields, dict) else {}
