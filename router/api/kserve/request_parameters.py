"""The parameters of a request: some steer how it is served, the others are the model's."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.router.api.kserve.json_fields import MAX_INT64, MAX_UINT64, as_bool, as_text, as_uint
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest, ParameterValue, SequenceFlags

RESERVED_PREFIX = "triton_"
RESERVED = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
SEQUENCE_NAMES = frozenset({"sequence_id", "sequence_start", "sequence_end"})


def apply_parameters(request: InferRequest, parameters: Mapping[str, object]) -> None:
    """Puts `parameters` into the fields of `request` that they stand for. Raises InferError."""
    has_sequence = False
    for name, value in parameters.items():
        if name in SEQUENCE_NAMES:
            has_sequence = True
        elif name == "priority":
            request.priority = as_uint(value, "Unable to parse 'priority'")
        elif name == "timeout":
            request.timeout_us = as_uint(value, "Unable to parse 'timeout'")
        elif name.startswith(RESERVED_PREFIX):
            raise InferError(RESERVED)
        else:
            request.parameters[name] = model_parameter(name, value)
    if has_sequence:
        request.sequence = sequence_flags(parameters)


def sequence_flags(parameters: Mapping[str, object]) -> SequenceFlags:
    return SequenceFlags(
        correlation_id(parameters.get("sequence_id", 0)),
        is_start=as_bool(parameters.get("sequence_start", False), "Unable to parse 'sequence_start'"),
        is_end=as_bool(parameters.get("sequence_end", False), "Unable to parse 'sequence_end'"),
    )


def correlation_id(value: object) -> int | str:
    if type(value) is int and 0 <= value <= MAX_UINT64:
        return value
    return as_text(value, "Unable to parse 'sequence_id'")


def model_parameter(name: str, value: object) -> ParameterValue:
    """What the model gets. An integer beyond 64 bits is a float there, as in Triton's reading of JSON."""
    if isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return value if -MAX_INT64 - 1 <= value <= MAX_INT64 else float(value)
    raise InferError(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")
