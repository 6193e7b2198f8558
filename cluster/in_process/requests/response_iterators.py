"""Iterators over the responses to a request, which runs whether or not its responses are taken."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque

from slipstream.cluster.in_process.interface.errors import InvalidArgumentError
from slipstream.cluster.in_process.requests.infer_request import InferenceRequest
from slipstream.cluster.in_process.requests.infer_response import InferenceResponse
from slipstream.cluster.in_process.requests.response_forwarder import ResponseForwarder
from slipstream.cluster.in_process.running.server_thread import ServerThread
from slipstream.router.tensors.infer_service import InferService


class ResponseIterator:
    """Of `Model.infer`: `next` waits for a response, and raises its error, if it has one and `raises_errors`."""

    def __init__(
        self, request: InferenceRequest, thread: ServerThread, service: InferService, *, raises_errors: bool
    ) -> None:
        """Submits the request. Raises TritonError."""
        self._raises_errors = raises_errors
        self._is_complete = False
        self._responses = queue.SimpleQueue[InferenceResponse]()
        self._queue = request.response_queue
        if isinstance(self._queue, asyncio.Queue):
            raise InvalidArgumentError("response_queue of infer must be a queue.SimpleQueue, got an asyncio.Queue")
        self._forwarder = ResponseForwarder(request, thread, self._put)
        self._forwarder.submit(request.to_router(), service)

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        if self._is_complete:
            raise StopIteration
        response = self._responses.get()
        self._is_complete = response.final
        if response.error is not None and self._raises_errors:
            raise response.error
        return response

    def cancel(self) -> None:
        """Ends the request, unless it has ended: its last response is then an error."""
        self._forwarder.cancel()

    def _put(self, response: InferenceResponse) -> None:
        self._responses.put(response)
        if self._queue is not None and not isinstance(self._queue, asyncio.Queue):
            self._queue.put(response)


class AsyncResponseIterator:
    """Of `Model.async_infer`, for one event loop of the program."""

    def __init__(
        self, request: InferenceRequest, thread: ServerThread, service: InferService, *, raises_errors: bool
    ) -> None:
        """Submits the request. Raises TritonError, and RuntimeError if no event loop runs that a queue belongs to."""
        self._raises_errors = raises_errors
        self._is_complete = False
        self._changes = threading.Lock()
        self._responses: deque[InferenceResponse] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._queue = request.response_queue
        if self._queue is not None and not isinstance(self._queue, asyncio.Queue):
            raise InvalidArgumentError("response_queue of async_infer must be an asyncio.Queue")
        self._queue_loop = None if self._queue is None else asyncio.get_running_loop()
        self._forwarder = ResponseForwarder(request, thread, self._put)
        self._forwarder.submit(request.to_router(), service)

    def __aiter__(self) -> AsyncResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._is_complete:
            raise StopAsyncIteration
        response = await self._next()
        self._is_complete = response.final
        if response.error is not None and self._raises_errors:
            raise response.error
        return response

    def cancel(self) -> None:
        """Ends the request, unless it has ended: its last response is then an error."""
        self._forwarder.cancel()

    async def _next(self) -> InferenceResponse:
        while True:
            with self._changes:
                if self._responses:
                    return self._responses.popleft()
                waiting = self._waiting = asyncio.get_running_loop().create_future()
            await waiting

    def _put(self, response: InferenceResponse) -> None:
        """On the event loop of the server."""
        with self._changes:
            self._responses.append(response)
            waiting, self._waiting = self._waiting, None
        with contextlib.suppress(RuntimeError):  # the program's event loop is closed
            if waiting is not None:
                waiting.get_loop().call_soon_threadsafe(wake, waiting)
            if self._queue is not None and self._queue_loop is not None and isinstance(self._queue, asyncio.Queue):
                self._queue_loop.call_soon_threadsafe(self._queue.put_nowait, response)


def wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
