"""Takes the responses to a request from the router to the program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from slipstream.cluster.in_process.interface.errors import triton_error
from slipstream.cluster.in_process.requests.infer_request import InferenceRequest
from slipstream.cluster.in_process.requests.infer_response import InferenceResponse, failure, response_of
from slipstream.cluster.in_process.running.server_thread import STOPPED, ServerThread
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, InferResponse
from slipstream.router.tensors.infer_service import InferService, Submission

Put = Callable[[InferenceResponse], None]


class ResponseForwarder:
    """`put` is called on the event loop of the server, with one response after the other."""

    def __init__(self, request: InferenceRequest, thread: ServerThread, put: Put) -> None:
        self._model = request.model
        self._id = request.request_id or ""
        self._memory_type = request.output_memory_type
        self._thread = thread
        self._put = put
        self._submission: Submission | None = None

    def submit(self, request: InferRequest, service: InferService) -> None:
        """Returns once the router has taken the request. Raises TritonError."""
        self._thread.call(partial(self._submit, request, service))

    def cancel(self) -> None:
        """Ends a request that has not ended. Any thread may call it."""
        self._thread.begin(self._cancel)

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        if is_final:
            self._thread.open_requests.discard(self)
        self._put(response_of(self._model, response, self._memory_type, is_final=is_final))

    def complete(self) -> None:
        self._thread.open_requests.discard(self)
        self._put(InferenceResponse(self._model, self._id, final=True))

    def fail(self, error: InferError) -> None:
        self._thread.open_requests.discard(self)
        self._put(failure(self._model, self._id, error))

    def abandon(self) -> None:
        """OpenRequest: the server has ended without an answer."""
        self.fail(InferError(STOPPED, InferErrorCode.UNAVAILABLE))

    def _submit(self, request: InferRequest, service: InferService) -> None:
        try:
            self._submission = service.submit(request, self)
            self._thread.open_requests.add(self)
        except InferError as error:
            raise triton_error(error) from None

    def _cancel(self) -> None:
        if self._submission is not None:
            self._submission.cancel()
