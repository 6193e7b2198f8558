"""The messages of an instance from the heads of its frames, and requests and responses for the frames to it."""

from __future__ import annotations

from typing import Any

from slipstream.router.instances.frames.frame_reader import FrameError, Json, Payload
from slipstream.router.instances.frames.tensor_places import PayloadWriter, PlaceReader
from slipstream.router.instances.messages import (
    CallCancelled,
    Completed,
    ControlCall,
    ExecuteRequest,
    InstanceFailed,
    InstanceMessage,
    InstanceResponse,
    LogLine,
    MetricsChanged,
    ModelCall,
    Ready,
    Released,
)
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, RequestedOutput, SequenceFlags
from slipstream.router.tensors.tensor import RegionSlice, TensorData

START_FLAG, END_FLAG = 1, 2


def places_wanted(item: ExecuteRequest) -> dict[str, RegionSlice] | None:
    """Where outputs are to be written, in clients' shared memory; None: nowhere."""
    if item.request is None or not item.request.requested:
        return None
    return {output.name: output.into for output in item.request.requested if output.into is not None} or None


def request_fields(item: ExecuteRequest, writer: PayloadWriter, into: dict[str, RegionSlice] | None) -> Json:
    """A request as `execute` has it. `into` as from `places_wanted`, if the instance shares memory."""
    request = item.request
    if request is None:
        return null_request_fields(item, writer)
    sequence = request.sequence
    inputs = writer.tensors(request.inputs)
    if item.extra_inputs:
        inputs += writer.tensors(item.extra_inputs)
    fields = {
        "n": item.n,
        "id": request.id,
        "correlation_id": 0 if sequence is None else sequence.correlation_id,
        "flags": 0 if sequence is None else START_FLAG * sequence.is_start + END_FLAG * sequence.is_end,
        "timeout_us": request.timeout_us,
        "priority": request.priority,
        "parameters": request.parameters or None,
        "outputs": wanted_outputs(request, item.extra_outputs),
        "inputs": inputs,
    }
    if into is not None:
        fields["into"] = {name: [place.region.key, place.offset, place.num_bytes] for name, place in into.items()}
    return fields


def wanted_outputs(request: InferRequest, extra: tuple[str, ...]) -> list[str] | None:
    """Names of outputs; None: all that the model has."""
    if not request.requested:
        return None
    names = [output.name for output in request.requested]
    return names + [name for name in extra if name not in names] if extra else names


def null_request_fields(item: ExecuteRequest, writer: PayloadWriter) -> Json:
    """A place without a request."""
    return {
        "n": item.n,
        "id": "",
        "correlation_id": 0,
        "flags": 0,
        "timeout_us": 0,
        "priority": 0,
        "parameters": None,
        "outputs": None,
        "inputs": writer.tensors(item.extra_inputs),
        "is_null": True,
    }


def response_fields(response: InstanceResponse, writer: PayloadWriter) -> Json:
    error = response.error
    return {
        "outputs": writer.tensors(response.outputs),
        "error": None if error is None else [error.code.value, error.message],
        "parameters": response.parameters or None,
    }


def instance_message(head: Json, payload: Payload, places: PlaceReader) -> InstanceMessage:
    """All messages but `executed` and `response`, which need to know their requests. Raises FrameError, and KeyError,
    TypeError, ValueError or OSError for fields that are missing or wrong."""
    match head["type"]:
        case "release":
            return Released([(key, offset) for key, offset in head["places"]])
        case "call":
            return _call(head, payload, places)
        case "call_cancel":
            return CallCancelled(head["call"])
        case "log":
            return LogLine(head["level"], head["text"], head.get("file") or "", head.get("line") or 0)
        case "metrics":
            return MetricsChanged(head["families"])
        case "control":
            return _control(head, payload, places)
        case "completed":
            return Completed(head["config"])
        case "ready":
            return Ready()
        case "failed":
            return InstanceFailed(head["error"], head.get("code") or "INTERNAL")
        case other:
            raise FrameError(f"an instance does not say {other!r}")


def response_error(fields: list[str] | None) -> InferError | None:
    """The error of a response."""
    if fields is None:
        return None
    code, text = fields
    return InferError(text, known_code(code), FailureReason.BACKEND)


def known_code(code: str) -> InferErrorCode:
    """A code that Triton does not have is an internal error."""
    return InferErrorCode(code) if code in InferErrorCode.__members__ else InferErrorCode.INTERNAL


def _call(head: Json, payload: Payload, places: PlaceReader) -> ModelCall:
    fields = head["request"]
    flags, correlation_id = fields["flags"], fields["correlation_id"]
    request = InferRequest(
        model=fields["model"],
        model_version=_version(fields["model_version"]),
        id=fields["id"],
        inputs=places.inputs(fields["inputs"], payload),
        requested=tuple(RequestedOutput(name) for name in fields["outputs"] or ()),
        parameters=dict(fields["parameters"] or {}),
        priority=fields["priority"],
        timeout_us=fields["timeout_us"],
    )
    if correlation_id or flags:
        request.sequence = SequenceFlags(correlation_id, bool(flags & START_FLAG), bool(flags & END_FLAG))
    return ModelCall(head["call"], request, bool(fields["decoupled"]), fields["parent"])


def _control(head: Json, payload: Payload, places: PlaceReader) -> ControlCall:
    files: dict[str, TensorData] = {
        path: places.data(place, payload) for path, place in (head.get("files") or {}).items()
    }
    version = _version(head.get("model_version", ""))
    return ControlCall(head["call"], head["action"], head["model"], version, head.get("config") or "", files)


def _version(value: Any) -> str:
    """Python models say -1 for the version that the policy chooses."""
    return "" if value in (None, "", -1, "-1") else str(value)
