"""The generate extension: text in, text out, at once or as server-sent events."""

from __future__ import annotations

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.kserve.http.admitted_request import AdmittedRequest
from slipstream.router.api.kserve.http.bodies.body_compression import IDENTITY
from slipstream.router.api.kserve.http.bodies.generate_body import fields_of, fill_from_fields
from slipstream.router.api.kserve.http.bodies.json_tensors import as_json, from_json
from slipstream.router.api.kserve.http.call_target import CallTarget
from slipstream.router.api.kserve.http.infer_calls import RequestMaker
from slipstream.router.api.kserve.http.large_bodies import body_of
from slipstream.router.api.kserve.infer_limits import InferLimits
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.api.kserve.response_waiter import ResponseWaiter, release
from slipstream.router.api.kserve.tensor_places import TensorPlaces
from slipstream.router.config.kserve_config import KServeHttpConfig
from slipstream.router.http.exchange import JSON
from slipstream.router.http.reader import Request
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, RequestTokens
from slipstream.router.tensors.model_spec import ModelSpec

EVENTS = "text/event-stream; charset=utf-8"
ONE_RESPONSE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number"
    " of responses"
)


class GenerateCalls:
    """`POST .../generate` and `.../generate_stream`."""

    def __init__(
        self,
        server: KServeServer,
        pool: RegionPool | None,
        config: KServeHttpConfig,
        maker: RequestMaker,
        limits: InferLimits,
    ) -> None:
        self._service = server.service
        self._limits = limits
        self._pool = pool
        self._max_input_bytes = config.max_input_bytes
        self._maker = maker

    async def generate(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        """Raises InferError, HttpError."""
        spec = self._service.spec_of(target.name, target.version)
        with AdmittedRequest(self._limits, exchange, target.name) as admitted:
            await self._generate(self._submitted(request, exchange, target, spec, admitted.tokens), exchange)

    async def _generate(self, waiter: ResponseWaiter, exchange: ApiExchange) -> None:
        try:
            response = await waiter.next()
            if response is None:
                raise InferError(ONE_RESPONSE, InferErrorCode.INTERNAL)
            try:
                if response.error is not None:
                    raise response.error
                body = body_from(response)
            finally:
                release(response)
            second = await waiter.next()
            if second is not None:
                release(second)
                raise InferError(ONE_RESPONSE, InferErrorCode.INTERNAL)
            exchange.respond(200, body, JSON)
        finally:
            waiter.close()

    async def generate_stream(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        """Each response is an event, and so is an error; one that comes first gives the answer its status. Raises
        InferError, HttpError for a request that is refused."""
        spec = self._service.spec_of(target.name, target.version)
        with AdmittedRequest(self._limits, exchange, target.name) as admitted:
            await self._stream(self._submitted(request, exchange, target, spec, admitted.tokens), exchange)

    async def _stream(self, waiter: ResponseWaiter, exchange: ApiExchange) -> None:
        try:
            try:
                response = await waiter.next()
            except InferError as error:
                exchange.respond(error.code.http_status, event_of(error_body(error)), EVENTS)
                return
            first_error = response.error if response is not None else None
            exchange.start(first_error.code.http_status if first_error is not None else 200, EVENTS)
            while response is not None:
                exchange.write(self._event(response))
                if exchange.congested:
                    await exchange.drain()
                try:
                    response = await waiter.next()
                except InferError as error:
                    exchange.finish(event_of(error_body(error)))
                    return
            exchange.finish()
        finally:
            waiter.close()

    @staticmethod
    def _event(response: InferResponse) -> bytes:
        try:
            return event_of(error_body(response.error) if response.error is not None else body_from(response))
        except InferError as error:
            return event_of(error_body(error))
        finally:
            release(response)

    def _submitted(
        self, request: Request, exchange: ApiExchange, target: CallTarget, spec: ModelSpec, tokens: RequestTokens
    ) -> ResponseWaiter:
        if request.headers.get(b"content-encoding", b"identity") != IDENTITY.encode():
            raise InferError("Unsupported content-encoding, only 'identity' is supported.")
        infer = self._maker.new(target, exchange, tokens)
        self._fill(infer, request, spec)
        waiter = ResponseWaiter()
        waiter.submit(infer, self._service)
        return waiter

    def _fill(self, infer: InferRequest, request: Request, spec: ModelSpec) -> None:
        body, lease = body_of(request)
        places = TensorPlaces(self._pool)
        try:
            fill_from_fields(infer, from_json(body), spec, places, self._max_input_bytes)
            self._maker.forward_headers(request, infer)
        except BaseException:
            places.release()
            raise
        finally:
            if lease is not None:
                lease.release()
        if places.holds_memory:
            infer.release = places.release


def body_from(response: InferResponse) -> bytes:
    fields, is_plain = fields_of(response)
    return as_json(fields, is_plain=is_plain)


def error_body(error: InferError) -> bytes:
    return as_json({"error": error.message}, is_plain=True)


def event_of(data: bytes) -> bytes:
    return b"data: %b\n\n" % data
