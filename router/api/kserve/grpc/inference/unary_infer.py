"""`ModelInfer`: one request, one response."""

from __future__ import annotations

import asyncio

import grpc.aio

from slipstream.router.api.kserve.grpc.calls.rpc_access import RpcAccess, RpcRights
from slipstream.router.api.kserve.grpc.calls.rpc_error import RpcError
from slipstream.router.api.kserve.grpc.calls.rpc_metadata import REQUEST_ID
from slipstream.router.api.kserve.grpc.inference.infer_acceptor import AcceptedRequest, InferAcceptor
from slipstream.router.api.kserve.grpc.messages.infer_request_message import InferRequestMessage
from slipstream.router.api.kserve.grpc.messages.infer_response_message import encoded_response
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferResponse

NO_RESPONSE = "the model has ended the request without a response"


class UnaryCall:
    """Receives the response of a request as the bytes of its message, until `close`."""

    __slots__ = ("_accepted", "_answer")

    def __init__(self, answer: asyncio.Future[bytes]) -> None:
        self._answer: asyncio.Future[bytes] | None = answer
        self._accepted: AcceptedRequest | None = None

    def accepted(self, accepted: AcceptedRequest) -> None:
        self._accepted = accepted

    def close(self) -> None:
        """Lets go of the request, which holds this receiver, and of the answer, whose error may hold its frames:
        garbage collections are rare in a router."""
        self._answer = self._accepted = None

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        answer, accepted = self._answer, self._accepted
        try:
            if answer is not None and accepted is not None and not answer.done():
                outputs, placed = accepted.outputs.of(response)
                answer.set_result(encoded_response(response, outputs, placed))
        except InferError as error:
            self.fail(error)
        finally:
            if response.release is not None:
                response.release()

    def complete(self) -> None:
        self.fail(InferError(NO_RESPONSE, InferErrorCode.INTERNAL))

    def fail(self, error: InferError) -> None:
        answer = self._answer
        if answer is not None and not answer.done():
            answer.set_exception(error)


class UnaryInfer:
    def __init__(self, acceptor: InferAcceptor, rights: RpcRights, access: RpcAccess) -> None:
        self._acceptor = acceptor
        self._rights = rights
        self._access = access

    async def handle(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            return await self._infer(data, context)
        except RpcError as error:
            code, message = error.code, error.message
        except InferError as error:
            refused = RpcError.of(error)
            code, message = refused.code, refused.message
        await context.abort(code, message)
        raise AssertionError("abort has raised")

    async def _infer(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        given = context.invocation_metadata() or ()
        caller = await self._access.enter(self._rights, given)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        call = UnaryCall(answer)
        message = InferRequestMessage.parse(data)
        metadata = self._acceptor.metadata(given)
        accepted = self._acceptor.accept(message, caller, metadata, call, in_stream=False)
        call.accepted(accepted)
        context.set_trailing_metadata(((REQUEST_ID, accepted.request_id),))
        has_failed = True
        try:
            data = await answer
            has_failed = False
            return data
        except asyncio.CancelledError:  # by the client, or its deadline has passed
            accepted.submission.cancel()
            raise
        finally:
            self._acceptor.settle(accepted, has_failed=has_failed)
            call.close()
            del answer
