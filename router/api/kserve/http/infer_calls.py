"""Inference over HTTP: one request, one response."""

from __future__ import annotations

import re
import time

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.kserve.client_outputs import ClientOutputs
from slipstream.router.api.kserve.http.admitted_request import AdmittedRequest
from slipstream.router.api.kserve.http.bodies.body_compression import IDENTITY, coding_of_answer, decoded, encoded
from slipstream.router.api.kserve.http.bodies.infer_answer import InferAnswer, infer_answer
from slipstream.router.api.kserve.http.bodies.infer_body import InferBodyReader
from slipstream.router.api.kserve.http.bodies.output_form import OutputForm
from slipstream.router.api.kserve.http.call_target import CallTarget
from slipstream.router.api.kserve.http.large_bodies import RAW_HEAD_LENGTH, body_of
from slipstream.router.api.kserve.infer_limits import InferLimits
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.api.kserve.request_parameters import RESERVED_PREFIX
from slipstream.router.api.kserve.response_waiter import ResponseWaiter, release
from slipstream.router.api.kserve.tensor_places import TensorPlaces
from slipstream.router.config.kserve_config import KServeHttpConfig
from slipstream.router.http.reader import Request
from slipstream.router.tensor_memory.region_pool import RegionLease, RegionPool
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, RequestTokens
from slipstream.router.tensors.model_spec import ModelSpec

AT_ONCE_BYTES = 64 * 1024  # of an answer are joined and given to the socket in one piece
DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
LEADING_NUMBER = re.compile(r"\s*([+-]?\d+)")
RESERVED_HEADERS = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)


class RequestMaker:
    """Makes requests with what they have from the HTTP request, whatever its body says."""

    def __init__(self, forward_headers: str) -> None:
        self._forwarded = re.compile(forward_headers) if forward_headers else None

    def new(self, target: CallTarget, exchange: ApiExchange, tokens: RequestTokens) -> InferRequest:
        context = exchange.context
        return InferRequest(
            target.name,
            target.version,
            tenant=context.caller.tenant(""),
            request_id=exchange.request_id,
            trace_id=context.trace_id,
            received_s=time.monotonic(),
            tokens=tokens,
        )

    def forward_headers(self, request: Request, infer: InferRequest) -> None:
        """Raises InferError."""
        if self._forwarded is None:
            return
        for raw_name, value in request.headers.items():
            name = raw_name.decode("latin-1")
            if self._forwarded.search(name):
                if name in RESERVED_HEADERS or name.startswith(RESERVED_PREFIX):
                    raise InferError(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
                infer.parameters[name] = value.decode("latin-1")


class InferCalls:
    """`POST .../infer`."""

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
        self._reader = InferBodyReader(server.client_regions, config.max_input_bytes)
        self._max_input_bytes = config.max_input_bytes
        self._maker = maker

    async def infer(self, request: Request, exchange: ApiExchange, target: CallTarget) -> None:
        """Raises InferError, HttpError."""
        spec = self._service.spec_of(target.name, target.version)
        if spec.is_decoupled:
            raise InferError(DECOUPLED, InferErrorCode.UNSUPPORTED)
        with AdmittedRequest(self._limits, exchange, target.name) as admitted:
            infer = self._maker.new(target, exchange, admitted.tokens)
            form = await self._read(request, infer, spec)
            if infer.sequence is not None:
                self._refuse_repeated(exchange, infer)
            waiter = ResponseWaiter()
            try:
                waiter.submit(infer, self._service)
                response = await waiter.next()
                if response is None:
                    raise InferError("expected a single response, got 0", InferErrorCode.INTERNAL)
                await self._answer(response, infer, spec, form, request, exchange)
            finally:
                waiter.close()

    async def _answer(
        self,
        response: InferResponse,
        infer: InferRequest,
        spec: ModelSpec,
        form: OutputForm,
        request: Request,
        exchange: ApiExchange,
    ) -> None:
        try:
            if response.error is not None:
                raise response.error
            outputs, placed = ClientOutputs(infer.requested, spec).of(response)
            await self._send(infer_answer(response, outputs, placed, form), request, exchange)
        finally:
            release(response)

    @staticmethod
    def _refuse_repeated(exchange: ApiExchange, infer: InferRequest) -> None:
        """A request of a sequence is never executed twice."""
        try:
            exchange.refuse_if_repeated()
        except BaseException:
            if infer.release is not None:
                infer.release()
            raise

    async def _read(self, request: Request, infer: InferRequest, spec: ModelSpec) -> OutputForm:
        """Fills `infer` from the body, and sets its `release`. Raises InferError, HttpError; then nothing is kept."""
        body, lease = body_of(request)
        places = TensorPlaces(self._pool)
        try:
            coding = request.headers.get(b"content-encoding")
            if coding is not None:
                body = await decoded(body, coding.decode("latin-1"), self._max_input_bytes)
                if lease is not None and body.obj is not lease.view.obj:
                    lease.release()
                    lease = None
            form = self._parse(request, infer, body, places, lease, spec)
            self._maker.forward_headers(request, infer)
        except BaseException:
            places.release()
            if lease is not None:
                lease.release()
            raise
        if lease is not None and not places.keeps(lease):
            lease.release()
        if places.holds_memory:
            infer.release = places.release
        return form

    def _parse(
        self,
        request: Request,
        infer: InferRequest,
        body: memoryview,
        places: TensorPlaces,
        lease: RegionLease | None,
        spec: ModelSpec,
    ) -> OutputForm:
        head_bytes = head_length(request.headers.get(RAW_HEAD_LENGTH), len(body))
        if head_bytes == 0:
            return self._reader.read_raw(infer, body, places, lease, spec)
        return self._reader.read(infer, body, head_bytes, places, lease)

    async def _send(self, answer: InferAnswer, request: Request, exchange: ApiExchange) -> None:
        headers = answer.headers
        accepted = request.headers.get(b"accept-encoding")
        coding = coding_of_answer(accepted.decode("latin-1")) if accepted is not None else IDENTITY
        if coding != IDENTITY:
            body = await encoded(answer.parts, coding)
            exchange.respond(200, body, answer.content_type, [*headers, ("content-encoding", coding)])
        elif answer.num_bytes <= AT_ONCE_BYTES:
            exchange.respond(200, b"".join(answer.parts), answer.content_type, headers)
        else:
            await exchange.respond_in_parts(200, answer.parts, answer.content_type, headers)


def head_length(header: bytes | None, num_bytes: int) -> int:
    """How many bytes of a body are its JSON head; 0: it is a raw request. Raises InferError."""
    if header is None:
        return num_bytes
    text = header.decode("latin-1")
    match = LEADING_NUMBER.match(text)
    length = int(match[1]) if match is not None else 0
    if not 0 <= length <= num_bytes:
        raise InferError(f"inference header size should be in range (0, {num_bytes}), got: {text}")
    return length
