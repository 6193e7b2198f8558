"""The repository extension: which models there are, and loading and unloading them."""

from __future__ import annotations

import base64
from typing import Any

import orjson

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.kserve.http.bodies.json_tensors import from_json
from slipstream.router.api.kserve.http.call_target import CallTarget
from slipstream.router.api.kserve.http.large_bodies import body_of
from slipstream.router.api.kserve.json_fields import as_bool, as_text, found, has, members, refuse
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.http.exchange import JSON
from slipstream.router.http.reader import Request
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_service import IndexEntry

FILE = "file:"  # begins the names of parameters that are files


class RepositoryCalls:
    def __init__(self, server: KServeServer) -> None:
        self._repository = server.repository

    async def index(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        fields = json_body(request)
        only_ready = has(fields, "ready") and as_bool(found(fields, "ready"))
        entries = self._repository.index(only_ready=only_ready)
        exchange.respond(200, orjson.dumps([entry_fields(entry) for entry in entries]))

    async def load(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        refuse_repository(target)
        fields = json_body(request)
        config, files = "", dict[str, bytes]()
        parameters = members(found(fields, "parameters")) if has(fields, "parameters") else {}
        for name, value in parameters.items():
            text = as_text(value)
            if name == "config":
                config = text
            elif name.startswith(FILE):
                files[name.removeprefix(FILE)] = decoded_file(name, text)
            else:
                refuse("unexpected error on creating Triton parameter")
        await self._repository.load(target.name, config, files or None)
        exchange.respond(200, b"", JSON)

    async def unload(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        refuse_repository(target)
        parameters = found(json_body(request), "parameters")
        name = "unload_dependents"
        with_dependents = has(parameters, name) and as_bool(parameters[name], f"Unable to parse '{name}'")
        await self._repository.unload(target.name, with_dependents=with_dependents)
        exchange.respond(200, b"", JSON)


def json_body(request: Request) -> Any:
    """What the body says; None for none. Raises InferError."""
    body, lease = body_of(request)
    try:
        return from_json(body) if body else None
    finally:
        if lease is not None:
            lease.release()


def entry_fields(entry: IndexEntry) -> dict[str, str]:
    fields = {"name": entry.name}
    if entry.version:
        fields["version"] = entry.version
    if entry.phase is not None:
        fields["state"] = entry.phase.value
    if entry.reason:
        fields["reason"] = entry.reason
    return fields


def refuse_repository(target: CallTarget) -> None:
    if target.repository:
        message = "'repository_name' specification is not supported"
        raise InferError(message, InferErrorCode.UNSUPPORTED)


def decoded_file(name: str, text: str) -> bytes:
    """Raises INVALID_ARG."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InferError(f"Unable to decode base64 of '{name}': {error}") from error
