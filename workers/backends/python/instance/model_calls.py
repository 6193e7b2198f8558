"""Calls that a model makes of the server: of other models, and to load and unload them."""

from __future__ import annotations

import itertools
import json
from collections import deque
from typing import Any, Callable

from slipstream.workers.backends.python.instance.memory.input_memory import InputMemory
from slipstream.workers.backends.python.instance.memory.output_memory import OutputMemory
from slipstream.workers.backends.python.instance.wire.frames import ConnectionLostError, FrameMessage, encode_head
from slipstream.workers.backends.python.instance.wire.router_link import InstanceRouterLink
from slipstream.workers.backends.python.instance.wire.tensor_reader import read_tensors
from slipstream.workers.backends.python.instance.wire.tensor_writer import Payload, TensorWriter, quote
from slipstream.workers.backends.python.model_api.infer_request import InferenceRequest
from slipstream.workers.backends.python.model_api.infer_response import InferenceResponse
from slipstream.workers.backends.python.model_api.parameters import parameters_text
from slipstream.workers.backends.python.model_api.tensors.errors import ErrorCode, TritonError, TritonModelException

UNREADABLE = "The response of the model cannot be read"
LOST = "The connection to the router was lost."


class OpenCall:
    """One call. `responses` are those that have come and were not taken. `places` of its inputs are in use until it is
    over; `when_over` is called then, by the thread that reads."""

    __slots__ = ("is_over", "number", "places", "responses", "result", "when_over")

    def __init__(self, number: int, places: list[tuple[str, int]]) -> None:
        self.number = number
        self.places = places
        self.responses: deque[InferenceResponse] = deque()
        self.result: dict[str, Any] = {}  # of a control call
        self.is_over = False
        self.when_over: Callable[[], None] | None = None


class OutgoingCalls:
    """All calls of one connection."""

    def __init__(
        self, link: InstanceRouterLink, writer: TensorWriter, memory: OutputMemory, inputs: InputMemory
    ) -> None:
        self._link = link
        self._writer = writer
        self._memory = memory
        self._inputs = inputs
        self._numbers = itertools.count(1)
        self._calls: dict[int, OpenCall] = {}

    def begin(self, request: InferenceRequest, is_decoupled: bool, parent_n: int | None) -> OpenCall:
        """Starts the execution of another model."""
        payload = Payload()
        inputs = ",".join([self._writer.tensor(tensor, payload) for tensor in request._inputs])
        call = OpenCall(next(self._numbers), payload.places)
        fields = {
            "id": request._request_id,
            "correlation_id": request._correlation_id,
            "flags": request._flags,
            "timeout_us": request._timeout,
            "priority": 0,
            "parameters": json.loads(request.parameters()) or None,
            "outputs": sorted(request._requested_output_names) or None,
            "model": request._model_name,
            "model_version": "" if request._model_version < 0 else str(request._model_version),
            "decoupled": is_decoupled,
            "parent": parent_n,
        }
        head = encode_head(fields)
        self._send(call, f'{{"type":"call","call":{call.number},"request":{head[:-1]},"inputs":[{inputs}]}}}}', payload)
        return call

    def wait(self, call: OpenCall) -> InferenceResponse:
        """The response of a call that has only one."""
        try:
            self._link.wait_until(lambda: call.is_over)
        except ConnectionLostError:
            return lost()
        return result_of(call)

    def next_response(self, call: OpenCall) -> tuple[InferenceResponse, bool]:
        """The next one, and whether it was the last."""
        try:
            self._link.wait_until(lambda: bool(call.responses))
        except ConnectionLostError:
            return lost(), True
        response = call.responses.popleft()
        return response, call.is_over and not call.responses

    def cancel(self, call: OpenCall) -> None:
        if not call.is_over:
            self._link.send(f'{{"type":"call_cancel","call":{call.number}}}', [], 0)

    def control(self, action: str, model: str, fields: dict[str, Any]) -> Any:
        """Waits for the server's answer. Raises TritonModelException."""
        payload = Payload()
        files = fields.pop("files", {})
        places = ",".join(
            [f"{quote(name)}:{self._writer.bytes_place(bytes(data), payload)}" for name, data in files.items()]
        )
        call = OpenCall(next(self._numbers), payload.places)
        head = encode_head({"type": "control", "call": call.number, "action": action, "model": model, **fields})
        self._send(call, f'{head[:-1]},"files":{{{places}}}}}', payload)
        try:
            self._link.wait_until(lambda: call.is_over)
        except ConnectionLostError:
            raise TritonModelException(LOST) from None
        if call.result.get("error") is not None:
            raise TritonModelException(call.result["error"])
        return call.result.get("value")

    def received(self, message: FrameMessage) -> None:
        """A `call_response` or `control_result`. Runs in the thread that reads."""
        head = message.head
        call = self._calls.get(head["call"])
        if call is None:
            return
        if message.type == "control_result":
            call.result = head
            self._end(call)
            return
        is_final = head["final"]
        if head["response"] is not None:
            call.responses.append(self._response(head["response"], message.payload))
        elif is_final:
            call.responses.append(InferenceResponse())  # an end without a response is an empty one
        if is_final:
            self._end(call)

    def fail_all(self) -> None:
        """The connection is lost."""
        for call in list(self._calls.values()):
            call.responses.append(lost())
            call.result = {"error": LOST}
            self._end(call)

    def _send(self, call: OpenCall, head: str, payload: Payload) -> None:
        self._calls[call.number] = call
        self._link.send(head, payload.pieces, payload.num_bytes)

    def _end(self, call: OpenCall) -> None:
        self._calls.pop(call.number, None)
        for key, offset in call.places:
            self._memory.release(key, offset)
        call.is_over = True
        if call.when_over is not None:
            call.when_over()

    def _response(self, described: dict[str, Any], payload: bytearray) -> InferenceResponse:
        error = described.get("error")
        if error is not None:
            return InferenceResponse(error=TritonError(error[1], ErrorCode[error[0]]))
        outputs = described["outputs"]
        try:
            response = InferenceResponse(read_tensors(outputs, payload, self._inputs))
        except (OSError, ValueError) as failure:  # the model that has answered may be gone, and its memory with it
            response = InferenceResponse(error=TritonError(f"{UNREADABLE}: {failure}", TritonError.UNAVAILABLE))
        places = [tensor[3][:2] for tensor in outputs if len(tensor[3]) == 3]
        if places:
            self._link.send(encode_head({"type": "release", "places": places}), [], 0)
        response._parameters = parameters_text(described.get("parameters"))
        return response


def result_of(call: OpenCall) -> InferenceResponse:
    """Of a call that is over: its first response."""
    return call.responses[0] if call.responses else InferenceResponse()


def lost() -> InferenceResponse:
    return InferenceResponse(error=TritonError(LOST, TritonError.UNAVAILABLE))
