"""Receives the responses of a request for the handler that waits for them."""

from __future__ import annotations

import asyncio
from collections import deque

from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest, InferResponse
from slipstream.router.tensors.infer_service import InferService, Submission


class ResponseWaiter:
    """A `ResponseReceiver`. What it was given and the handler does not take is released by `close`, which also
    cancels a request that has not ended."""

    __slots__ = ("_error", "_has_ended", "_is_closed", "_responses", "_submission", "_waiting")

    def __init__(self) -> None:
        self._responses: deque[InferResponse] = deque()
        self._error: InferError | None = None
        self._has_ended = False
        self._is_closed = False
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
        return self._responses.popleft()

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        self._has_ended = self._has_ended or is_final
        if self._is_closed:
            release(response)
            return
        self._responses.append(response)
        self._wake()

    def complete(self) -> None:
        self._has_ended = True
        self._wake()

    def fail(self, error: InferError) -> None:
        self._has_ended = True
        self._error = error
        self._wake()

    def close(self) -> None:
        """The handler wants nothing more."""
        self._is_closed = True
        submission, self._submission = self._submission, None  # which holds this receiver
        while self._responses:
            release(self._responses.popleft())
        if not self._has_ended and submission is not None:
            submission.cancel()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


def release(response: InferResponse) -> None:
    """Gives back the memory of its outputs."""
    if response.release is not None:
        response.release()
