"""`ModelStreamInfer`: many requests of any models on one stream, and their responses."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import grpc
import grpc.aio

from slipstream.router.access.caller import Caller
from slipstream.router.api.kserve.grpc.calls.rpc_access import RpcAccess, RpcRights
from slipstream.router.api.kserve.grpc.calls.rpc_error import RpcError
from slipstream.router.api.kserve.grpc.calls.rpc_metadata import RpcMetadata
from slipstream.router.api.kserve.grpc.inference.infer_acceptor import AcceptedRequest, InferAcceptor
from slipstream.router.api.kserve.grpc.messages.infer_request_message import InferRequestMessage
from slipstream.router.api.kserve.grpc.messages.infer_response_message import (
    encoded_end,
    encoded_failure,
    encoded_in_stream,
    encoded_refusal,
)
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferResponse

MAX_UNSENT = 64  # messages; while more wait for the client to read them, none of its requests is read
MAX_UNSENT_BYTES = 1 << 28  # that wait for the client, or for responses before them; with more it loses the stream
MAX_OPEN = 4096  # requests that are not over; while there are so many, no other one is read
UNREADABLE = "the requests of this stream cannot be read"

log = logging.getLogger(__name__)


class StreamRequest:
    """Receives the responses of a request of a stream. Those of one that `is_ordered`, of a model that is not
    decoupled, are sent in the order of the requests: they wait in `unsent` for those before it."""

    __slots__ = ("_id", "_model", "_stream", "accepted", "has_failed", "is_ordered", "is_over", "unsent")

    def __init__(self, stream: InferStream, message: InferRequestMessage) -> None:
        self._stream = stream
        self._model = message.model
        self._id = message.id
        self.accepted: AcceptedRequest | None = None
        self.unsent: list[bytes] = []
        self.is_ordered = True
        self.is_over = False
        self.has_failed = False

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        assert self.accepted is not None
        try:
            if response.error is not None:
                raise response.error
            if not self._stream.is_closed:
                outputs, placed = self.accepted.outputs.of(response)
                self._send(encoded_in_stream(response, outputs, placed, is_final=is_final), is_over=is_final)
            elif is_final:
                self._end()
        except InferError as error:
            self._fail(error, is_final=is_final)
        finally:
            if response.release is not None:
                response.release()

    def complete(self) -> None:
        assert self.accepted is not None
        if self.accepted.wants_empty_final:
            self._send(encoded_end(self._model, self._id), is_over=True)
        else:
            self._end()

    def fail(self, error: InferError) -> None:
        self._fail(error, is_final=True)

    def refuse(self, text: str) -> None:
        """The request was not accepted."""
        self._send(encoded_refusal(text, self._id), is_over=True)

    def _fail(self, error: InferError, *, is_final: bool) -> None:
        self.has_failed = True
        if self._stream.has_strict_errors:
            self._stream.close(RpcError.of(error))
        failure = encoded_failure(error.message, self._model, self._id, is_final=is_final)
        self._send(failure, is_over=is_final)

    def _send(self, message: bytes, *, is_over: bool) -> None:
        self.unsent.append(message)
        self._stream.count(len(message))
        if is_over:
            self._end()
        else:
            self._stream.send_of(self)

    def _end(self) -> None:
        self.is_over = True
        self._stream.end_of(self)


class InferStream:
    """One RPC. It ends when the client has ended it and all requests are over, or with the status of `close`."""

    def __init__(
        self,
        acceptor: InferAcceptor,
        caller: Caller,
        metadata: RpcMetadata,
        context: grpc.aio.ServicerContext[bytes, bytes],
    ) -> None:
        self._acceptor = acceptor
        self._caller = caller
        self._metadata = metadata
        self._context = context
        self._requests: dict[StreamRequest, None] = {}  # that are not over
        self._order: deque[StreamRequest] = deque()  # those whose responses are sent in this order
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._changed = asyncio.Event()  # what the writer waits for
        self._has_room = asyncio.Event()
        self._is_read = False  # to its end
        self._failure: RpcError | None = None
        self.is_closed = False

    @property
    def has_strict_errors(self) -> bool:
        return self._metadata.has_strict_errors

    async def run(self) -> None:
        """Serves the stream. Raises RpcError. If it is cancelled, so are its requests."""
        reader = asyncio.create_task(self._read())
        try:
            await self._write()
        finally:
            self.is_closed = True
            reader.cancel()
            self._cancel_requests()
            await asyncio.gather(reader, return_exceptions=True)
        if self._failure is not None:
            raise self._failure

    def send_of(self, request: StreamRequest) -> None:
        """Sends what a request has to send, as soon as it is its turn."""
        if not request.is_ordered:
            self._move(request)
        while self._order and self._order[0].is_over:
            self._move(self._order.popleft())
        self._changed.set()

    def count(self, num_bytes: int) -> None:
        """A request has so much more to send, now or later."""
        if self._unsent_bytes > MAX_UNSENT_BYTES:
            problem = f"the client reads too slowly: more than {MAX_UNSENT_BYTES} bytes of responses wait for it"
            self.close(RpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, problem))
        self._unsent_bytes += num_bytes

    def end_of(self, request: StreamRequest) -> None:
        self._requests.pop(request, None)
        self._find_room()
        if request.accepted is not None:
            self._acceptor.settle(request.accepted, has_failed=request.has_failed)
            request.accepted = None  # which holds this receiver
        self.send_of(request)

    def close(self, failure: RpcError) -> None:
        """Ends the stream with this status, and its requests with it, even if a message is being written that the
        client does not read."""
        if self._failure is None:
            self._failure = failure
        self.is_closed = True
        self._changed.set()
        asyncio.get_running_loop().call_soon(self._cancel_requests)  # not from within one of their answers

    def _move(self, request: StreamRequest) -> None:
        if not self.is_closed:
            self._unsent += request.unsent
        request.unsent.clear()
        self._find_room()

    def _find_room(self) -> None:
        if len(self._unsent) <= MAX_UNSENT and len(self._requests) < MAX_OPEN:
            self._has_room.set()
        else:
            self._has_room.clear()

    async def _read(self) -> None:
        try:
            while (data := await self._context.read()) is not grpc.aio.EOF:
                self._accept(data)
                self._find_room()
                await self._has_room.wait()
        except InferError as error:
            self.close(RpcError.of(error))
        except Exception:
            log.exception(UNREADABLE)
            self.close(RpcError(grpc.StatusCode.INTERNAL, UNREADABLE))
        finally:
            self._is_read = True
            self._changed.set()

    def _accept(self, data: bytes) -> None:
        """Raises InferError if the data are no request."""
        message = InferRequestMessage.parse(data)
        request = StreamRequest(self, message)
        self._requests[request] = None
        try:
            request.is_ordered = not self._acceptor.is_decoupled(message)
        except InferError as error:
            self._order.append(request)
            request.refuse(error.message)
            return
        if request.is_ordered:
            self._order.append(request)
        try:
            request.accepted = self._acceptor.accept(message, self._caller, self._metadata, request, in_stream=True)
        except (InferError, RpcError) as error:
            request.refuse(error.message)

    async def _write(self) -> None:
        """Until all is sent, or the stream is closed."""
        unsent = self._unsent
        while True:
            self._changed.clear()
            while unsent and not self.is_closed:
                message = unsent.popleft()
                await self._context.write(message)
                self._unsent_bytes -= len(message)
                self._find_room()
            if self.is_closed or (self._is_read and not self._requests):
                return
            await self._changed.wait()

    def _cancel_requests(self) -> None:
        failure = self._failure
        because = None if failure is None else InferError(failure.message, InferErrorCode.UNAVAILABLE)
        for request in list(self._requests):
            if request.accepted is not None:
                request.accepted.submission.cancel(because)


class StreamInfer:
    def __init__(self, acceptor: InferAcceptor, rights: RpcRights, access: RpcAccess) -> None:
        self._acceptor = acceptor
        self._rights = rights
        self._access = access

    async def handle(self, _: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        given = context.invocation_metadata() or ()
        try:
            caller = await self._access.enter(self._rights, given)
            await InferStream(self._acceptor, caller, self._acceptor.metadata(given), context).run()
        except RpcError as error:
            await context.abort(error.code, error.message)
