"""The requests that one instance makes to other models (BLS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.instances.messages import InstanceResponse, ModelCall
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, ResponseReceiver
from slipstream.router.tensors.infer_service import Submission
from slipstream.router.tensors.model_spec import ModelSpec


class CalledModels(Protocol):
    """What calls go to."""

    def is_ready(self, model: str, version: str = "") -> bool: ...
    def spec_of(self, model: str, version: str = "") -> ModelSpec: ...
    def submit(self, request: InferRequest, receiver: ResponseReceiver) -> Submission: ...


class CallReply(Protocol):
    """The way back to the instance."""

    def call_response(self, call: int, response: InstanceResponse | None, *, is_final: bool) -> None: ...


class ModelCalls:
    """Those that run. An instance that is gone has none: `cancel_all`."""

    def __init__(self, target: CalledModels, reply: CallReply) -> None:
        self._target = target
        self._reply = reply
        self._running: dict[int, Submission] = {}

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, call: ModelCall, parent: ActiveRequest | None) -> None:
        """Submits a request of a model with the tenant and trace of the request that it serves."""
        request = call.request
        if parent is not None:
            request.tenant, request.trace_id = parent.request.tenant, parent.request.trace_id
            request.tokens = parent.request.tokens
            request.parent_id = parent.request.request_id
            request.request_id = f"{request.parent_id}.{call.call}"
        receiver = CallReceiver(call.call, self, self._reply)
        try:
            self._check_target(call)
            self._running[call.call] = self._target.submit(request, receiver)
        except InferError as error:
            message = f"Model {request.model} - Error when running inference: {error.message}"
            receiver.fail(InferError(message, InferErrorCode.INTERNAL))

    def cancel(self, call: int) -> None:
        submission = self._running.get(call)
        if submission is not None:
            submission.cancel()

    def cancel_all(self) -> None:
        """The caller is gone."""
        running, self._running = self._running, {}
        for submission in running.values():
            submission.cancel()

    def end(self, call: int) -> None:
        self._running.pop(call, None)

    def _check_target(self, call: ModelCall) -> None:
        """The model is ready, and not one that may give many responses where one is awaited."""
        model, version = call.request.model, call.request.model_version
        if not self._target.is_ready(model, version):
            raise InferError(f"Failed for execute the inference request. Model '{model}' is not ready.")
        if not call.is_decoupled and self._target.spec_of(model, version).is_decoupled:
            raise InferError(
                f"Model {model} is using the decoupled. The current BLS request call doesn't support models using the "
                "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' "
                "calls for decoupled models.'"
            )


@dataclass(slots=True)
class CallReceiver:
    """Sends the responses to one call back to the instance."""

    call: int
    calls: ModelCalls
    reply: CallReply

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        answer = InstanceResponse(response.outputs, response.error, response.parameters, response.release)
        self._send(answer, is_final=is_final)

    def complete(self) -> None:
        self._send(None, is_final=True)

    def fail(self, error: InferError) -> None:
        self._send(InstanceResponse(error=error), is_final=True)

    def _send(self, response: InstanceResponse | None, *, is_final: bool) -> None:
        if is_final:
            self.calls.end(self.call)
        self.reply.call_response(self.call, response, is_final=is_final)
