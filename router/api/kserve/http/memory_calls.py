"""The extensions for shared memory: that of the system is served, CUDA's is refused."""

from __future__ import annotations

import orjson

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.kserve.http.bodies.json_tensors import from_json
from slipstream.router.api.kserve.http.call_target import CallTarget
from slipstream.router.api.kserve.json_fields import as_text, as_uint, found, has
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.http.exchange import JSON
from slipstream.router.http.reader import Request
from slipstream.router.tensors.infer_error import InferError, InferErrorCode


class MemoryCalls:
    def __init__(self, server: KServeServer) -> None:
        self._regions = server.client_regions
        self._keep_settings = server.keep_settings

    async def status(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        shown = [
            {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
            for region in self._regions.status(target.name)
        ]
        exchange.respond(200, orjson.dumps(shown))

    async def register(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        if not target.name:
            raise InferError("'region name' is necessary to register system shared memory region")
        fields = from_json(request.body)
        for name in ("key", "byte_size"):
            if not has(fields, name):
                raise InferError(f"Shared memory register request has no '{name}' field")
        key = as_text(found(fields, "key"))
        offset = as_uint(fields["offset"]) if has(fields, "offset") else 0
        self._regions.register(target.name, key, offset, as_uint(found(fields, "byte_size")))
        await self._keep_settings()
        exchange.respond(200, b"", JSON)

    async def unregister(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        self._regions.unregister(target.name)
        await self._keep_settings()
        exchange.respond(200, b"", JSON)

    async def cuda_status(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        """None is ever registered."""
        if target.name:
            message = f"Unable to find cuda shared memory region: '{target.name}'"
            raise InferError(message, InferErrorCode.NOT_FOUND)
        exchange.respond(200, b"[]")

    async def cuda_register(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        message = f"failed to register CUDA shared memory region: '{target.name}', GPUs not supported"
        raise InferError(message)

    async def cuda_unregister(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        exchange.respond(200, b"", JSON)
