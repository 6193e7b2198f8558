"""The outputs that a request asks for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tritonclient.grpc import service_pb2

from slipstream.router.api.kserve.grpc.messages.infer_parameters import MemoryReference, memory_reference
from slipstream.router.tensors.infer_error import InferError


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """`classification` is k of the classification extension; 0: the tensor itself."""

    name: str
    classification: int = 0
    memory: MemoryReference | None = None


@lru_cache(maxsize=1024)
def output_request(message: bytes) -> OutputRequest:
    """An `InferRequestedOutputTensor`. Raises InferError, and DecodeError if it is none."""
    parsed = service_pb2.ModelInferRequest.InferRequestedOutputTensor.FromString(message)
    if not parsed.parameters:
        return OutputRequest(parsed.name)
    memory = memory_reference(parsed.name, parsed.parameters)
    if "classification" not in parsed.parameters:
        return OutputRequest(parsed.name, memory=memory)
    parameter = parsed.parameters["classification"]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise InferError("invalid value type for 'classification' parameter, expected int64_param")
    if parameter.int64_param <= 0:
        raise InferError("invalid value for 'classification' parameter, expected >= 0")
    if memory is not None:
        raise InferError("output can't set both 'shared_memory_region' and 'classification'")
    return OutputRequest(parsed.name, parameter.int64_param)
