"""Parameters of a request, of its inputs and of its outputs, checked as Triton checks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tritonclient.grpc import service_pb2

from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest, ParameterValue, SequenceFlags

FINAL_RESPONSE_PARAMETER = "triton_enable_empty_final_response"
RESERVED = "triton_"


@dataclass(frozen=True, slots=True)
class MemoryReference:
    """A place in a region of shared memory that the client has registered under the name `region`."""

    region: str
    offset: int
    num_bytes: int


def value_of(name: str, parameter: service_pb2.InferParameter) -> ParameterValue:
    """Raises InferError if there is none."""
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None:
        raise InferError(
            f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or string_param."
        )
    value: ParameterValue = getattr(parameter, kind)
    return value


def integer(name: str, value: ParameterValue, expected: str = "int64_param.") -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InferError(f"invalid value type for '{name}' parameter, expected {expected}")
    return value


def boolean(name: str, value: ParameterValue) -> bool:
    if not isinstance(value, bool):
        raise InferError(f"invalid value type for '{name}' parameter, expected bool_param.")
    return value


def apply_parameters(request: InferRequest, parameters: Iterable[bytes | memoryview]) -> bool:
    """Sets what the entries of a request's `parameters`, as encoded, say. Returns whether a stream is to say that
    there are no more responses even if none comes with that. Raises InferError."""
    correlation_id: int | str = 0
    is_start = is_end = wants_empty_final = False
    for entry in parameters:
        parsed = service_pb2.ModelInferRequest.ParametersEntry.FromString(entry)
        name = parsed.key
        value = value_of(name, parsed.value)
        if name == "sequence_id":
            if isinstance(value, bool | float):
                raise InferError(
                    "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."
                )
            correlation_id = value if isinstance(value, str) else value & 0xFFFF_FFFF_FFFF_FFFF
        elif name == "sequence_start":
            is_start = boolean(name, value)
        elif name == "sequence_end":
            is_end = boolean(name, value)
        elif name == "priority":
            request.priority = integer(name, value, "int64_param or uint64_param.")
            if request.priority < 0:
                raise InferError("invalid value for 'priority', expected value >= 0.")
        elif name == "timeout":
            request.timeout_us = integer(name, value)
        elif name == FINAL_RESPONSE_PARAMETER:
            wants_empty_final = boolean(name, value)
        elif name.startswith(RESERVED):
            raise InferError(
                f"parameter keys starting with '{RESERVED}' are reserved for Triton usage. Only the following keys"
                f" starting with '{RESERVED}' are allowed: {FINAL_RESPONSE_PARAMETER}"
            )
        else:
            request.parameters[name] = value
    if correlation_id or is_start or is_end:
        request.sequence = SequenceFlags(correlation_id, is_start, is_end)
    return wants_empty_final


def memory_reference(tensor: str, parameters: Mapping[str, service_pb2.InferParameter]) -> MemoryReference | None:
    """Where the data of an input or output lie, or are to lie, if that is shared memory. Raises InferError."""
    if "shared_memory_region" not in parameters:
        return None
    region = _memory_parameter(tensor, parameters, "shared_memory_region", "string_param")
    if "shared_memory_byte_size" not in parameters:
        raise InferError(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor"
            f" '{tensor}'"
        )
    num_bytes = _memory_parameter(tensor, parameters, "shared_memory_byte_size", "int64_param")
    offset: str | int = 0
    if "shared_memory_offset" in parameters:
        offset = _memory_parameter(tensor, parameters, "shared_memory_offset", "int64_param")
    return MemoryReference(str(region), int(offset), int(num_bytes))


def _memory_parameter(
    tensor: str, parameters: Mapping[str, service_pb2.InferParameter], name: str, kind: str
) -> str | int:
    parameter = parameters[name]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InferError(f"invalid value type for '{name}' parameter for tensor '{tensor}', expected {kind}.")
    value: str | int = getattr(parameter, kind)
    return value
