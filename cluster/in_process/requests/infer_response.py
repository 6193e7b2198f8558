"""A response to a request of a program."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.cluster.in_process.interface.errors import InvalidArgumentError, TritonError, triton_error
from slipstream.cluster.in_process.requests.infer_request import RequestedModel
from slipstream.cluster.in_process.tensors.device import DeviceOrMemoryType
from slipstream.cluster.in_process.tensors.tensor import Tensor, tensor_of_bytes
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferResponse


@dataclass
class InferenceResponse:
    """`outputs` are tensors of the program's own. With an `error` there are none. The last response of a request is
    `final`; that of a decoupled model may be without outputs. `classification_label` is never set."""

    model: RequestedModel
    request_id: str | None = None
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: TritonError | None = None
    classification_label: str | None = None
    final: bool = False


def response_of(
    model: RequestedModel, response: InferResponse, memory_type: DeviceOrMemoryType | None, *, is_final: bool
) -> InferenceResponse:
    """What the router has given, which is released."""
    made = InferenceResponse(
        model.of_version(int(response.model_version)), response.id, dict(response.parameters), final=is_final
    )
    try:
        if response.error is not None:
            return failed(made, triton_error(response.error))
        made.outputs = {one.name: tensor_of_bytes(one.datatype, one.shape, one.view) for one in response.outputs}
        if memory_type is not None:
            made.outputs = {name: one.to_device(memory_type) for name, one in made.outputs.items()}
    except TritonError as error:
        made.outputs = {}
        return failed(made, InvalidArgumentError(f"Memory type {memory_type} not supported: {error}"))
    finally:
        if response.release is not None:
            response.release()
    return made


def failure(model: RequestedModel, request_id: str, error: InferError) -> InferenceResponse:
    """The one response to a request that has failed."""
    return failed(InferenceResponse(model, request_id, final=True), triton_error(error))


def failed(response: InferenceResponse, error: TritonError) -> InferenceResponse:
    """The error has the response with it."""
    error.args += (response,)
    response.error = error
    return response
