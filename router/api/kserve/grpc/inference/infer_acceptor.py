"""How a request of either inference RPC comes to its model."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from slipstream.router.access.access import Access, Permit
from slipstream.router.access.caller import Caller
from slipstream.router.api.kserve.client_outputs import ClientOutputs
from slipstream.router.api.kserve.grpc.calls.rpc_error import RpcError
from slipstream.router.api.kserve.grpc.calls.rpc_metadata import RpcMetadata
from slipstream.router.api.kserve.grpc.messages.infer_request_message import InferRequestMessage, InferRequestReader
from slipstream.router.api.kserve.infer_limits import InferLimits
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.http.http_error import HttpError
from slipstream.router.observability.tracing.request_trace import RequestTrace, RpcRefusal
from slipstream.router.observability.tracing.tracer import Tracer
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, RequestTokens, ResponseReceiver
from slipstream.router.tensors.infer_service import Submission

SERVICE_NAME = "inference.GRPCInferenceService"
UNARY, STREAM = "ModelInfer", "ModelStreamInfer"


@dataclass(slots=True)
class AcceptedRequest:
    """A request under way, with its id for records. `wants_empty_final`: a stream is to say that there are no more
    responses even if none comes with that."""

    request_id: str
    submission: Submission
    outputs: ClientOutputs
    is_decoupled: bool
    wants_empty_final: bool
    permit: Permit | None
    tokens: RequestTokens
    trace: RequestTrace | None


class InferAcceptor:
    """`settle` is to be called once for each request that was accepted."""

    def __init__(
        self,
        server: KServeServer,
        access: Access,
        pool: RegionPool,
        forward_headers: str,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._service = server.service
        self._reader = InferRequestReader(pool, server.client_regions)
        self._limits = InferLimits(access)
        self._forwarded = re.compile(forward_headers) if forward_headers else None
        self._num_running = 0
        self._is_idle = asyncio.Event()

    async def wait_idle(self) -> None:
        """Until no accepted request runs."""
        while self._num_running:
            self._is_idle.clear()
            await self._is_idle.wait()

    def metadata(self, given: Iterable[tuple[str, str | bytes]]) -> RpcMetadata:
        return RpcMetadata(given, self._forwarded)

    def is_decoupled(self, message: InferRequestMessage) -> bool:
        """Raises InferError if there is no such model."""
        return self._service.spec_of(message.model, message.version).is_decoupled

    def accept(
        self,
        message: InferRequestMessage,
        caller: Caller,
        metadata: RpcMetadata,
        receiver: ResponseReceiver,
        *,
        in_stream: bool,
    ) -> AcceptedRequest:
        """Raises InferError or RpcError if the request is refused; nothing but its trace is kept of it then."""
        trace = self._begin_trace(metadata, in_stream=in_stream)
        try:
            accepted = self._admit(message, caller, metadata, receiver, trace, in_stream)
        except (InferError, RpcError) as error:
            if self._tracer is not None and trace is not None:
                self._tracer.end_rpc(trace, refusal_of(error))
            raise
        self._num_running += 1
        return accepted

    def _admit(
        self,
        message: InferRequestMessage,
        caller: Caller,
        metadata: RpcMetadata,
        receiver: ResponseReceiver,
        trace: RequestTrace | None,
        in_stream: bool,
    ) -> AcceptedRequest:
        try:
            permit, _ = self._limits.admit(caller, message.model)
        except HttpError as error:
            raise RpcError.of_access(error) from None
        try:
            return self._submit(message, caller.tenant(""), metadata, receiver, permit, trace, in_stream)
        except BaseException:
            self._limits.settle(permit, RequestTokens(), has_failed=True)
            raise

    def settle(self, accepted: AcceptedRequest, *, has_failed: bool) -> None:
        """The request has ended."""
        self._limits.settle(accepted.permit, accepted.tokens, has_failed=has_failed)
        if self._tracer is not None and accepted.trace is not None:
            self._tracer.end_rpc(accepted.trace)
        self._num_running -= 1
        if not self._num_running:
            self._is_idle.set()

    def _submit(
        self,
        message: InferRequestMessage,
        tenant: str,
        metadata: RpcMetadata,
        receiver: ResponseReceiver,
        permit: Permit | None,
        trace: RequestTrace | None,
        in_stream: bool,
    ) -> AcceptedRequest:
        spec = self._service.spec_of(message.model, message.version)
        if spec.is_decoupled and not in_stream:
            text = "ModelInfer RPC doesn't support models with decoupled transaction policy"
            raise InferError(text, InferErrorCode.UNSUPPORTED)
        tokens = RequestTokens()
        request = InferRequest(message.model, tenant=tenant, received_s=time.monotonic(), tokens=tokens)
        wants_empty_final = self._reader.read(message, request)
        metadata.apply(request)
        outputs = ClientOutputs(request.requested, spec)
        if trace is not None:
            request.trace_id = trace.trace_id
        submission = self._service.submit(request, receiver)
        if self._tracer is not None and trace is not None:
            self._tracer.accepted_rpc(trace, request.request_id)
        return AcceptedRequest(
            request.request_id, submission, outputs, spec.is_decoupled, wants_empty_final, permit, tokens, trace
        )

    def _begin_trace(self, metadata: RpcMetadata, *, in_stream: bool) -> RequestTrace | None:
        """None: it is not traced."""
        if self._tracer is None:
            return None
        return self._tracer.begin_rpc(SERVICE_NAME, STREAM if in_stream else UNARY, metadata.trace)


def refusal_of(error: InferError | RpcError) -> RpcRefusal:
    status = error if isinstance(error, RpcError) else RpcError.of(error)
    return RpcRefusal(status.code.value[0], status.code.name, status.message)
