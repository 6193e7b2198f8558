"""Receives the responses of a request for the coroutine that waits for them."""

from __future__ import annotations

import asyncio
from collections import deque

from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, InferResponse
from slipstream.router.tensors.infer_service import InferService, Submission

MAX_WAITING = 1 << 16  # responses that are not taken; each takes about 1 KiB besides its outputs
MAX_WAITING_BYTES = 1 << 28  # of their outputs; a request with more, or more responses, is cancelled


class ResponseWaiter:
    """A `ResponseReceiver`. What it was given and the handler does not take is released by `close`, which also
    cancels a request that has not ended. A model that is much faster than the handler loses its request."""

    __slots__ = ("_error", "_excess", "_has_ended", "_is_closed", "_num_bytes", "_responses", "_submission", "_waiting")

    def __init__(self) -> None:
        self._responses: deque[InferResponse] = deque()
        self._error: InferError | None = None
        self._excess: InferError | None = None  # why this receiver has given the request up
        self._has_ended = False
        self._is_closed = False
        self._num_bytes = 0  # of the responses that wait, but for the final one
        self._waiting: asyncio.Future[None] | None = None
        self._submission: Submission | None = None

    def submit(self, request: InferRequest, service: InferService) -> None:
        """Raises InferError."""
        self._submission = service.submit(request, self)

    async def next(self) -> InferResponse | None:
        """The next response, to be released by the caller; None: there are no more. Raises InferError if the request
        has failed."""
        while not self._responses:
            if self._error is not None:
                error, self._error = self._error, None
                try:
                    raise error
                finally:
                    del error  # which holds this frame by its traceback
            if self._has_ended:
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        response = self._responses.popleft()
        if self._num_bytes:
            self._num_bytes -= num_bytes_of(response)
        return response

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        self._has_ended = self._has_ended or is_final
        if self._is_closed:
            release(response)
            return
        self._responses.append(response)
        if not is_final:
            self._count(response)
        self._wake()

    def complete(self) -> None:
        self._has_ended = True
        self._wake()

    def fail(self, error: InferError) -> None:
        self._has_ended = True
        self._error = self._error or error
        self._wake()

    def close(self) -> None:
        """The handler wants nothing more."""
        self._release_all()
        self._cancel()
        self._submission = None  # which holds this receiver
        self._excess = None  # which may hold frames

    def _count(self, response: InferResponse) -> None:
        self._num_bytes += num_bytes_of(response)
        if len(self._responses) <= MAX_WAITING and self._num_bytes <= MAX_WAITING_BYTES:
            return
        exceeded = f"{MAX_WAITING} responses"
        if self._num_bytes > MAX_WAITING_BYTES:
            exceeded = f"{MAX_WAITING_BYTES} bytes of responses"
        self._release_all()
        text = f"the client reads too slowly: more than {exceeded} wait for it"
        self._error = self._excess = InferError(text, InferErrorCode.UNAVAILABLE)
        asyncio.get_running_loop().call_soon(self._cancel)  # not from within one of its responses

    def _cancel(self) -> None:
        if not self._has_ended and self._submission is not None:
            self._submission.cancel(self._excess)

    def _release_all(self) -> None:
        """Nothing is taken any more."""
        self._is_closed = True
        while self._responses:
            release(self._responses.popleft())

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


def num_bytes_of(response: InferResponse) -> int:
    return sum([output.num_bytes for output in response.outputs])


def release(response: InferResponse) -> None:
    """Gives back the memory of its outputs."""
    if response.release is not None:
        response.release()
