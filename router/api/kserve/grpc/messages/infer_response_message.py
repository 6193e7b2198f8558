"""A response as a `ModelInferResponse`, or as the `ModelStreamInferResponse` around it.

The messages are put together here, of fields that are the same each time and of the tensors' bytes, so that those are
copied once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from tritonclient.grpc import service_pb2

from slipstream.router.api.kserve.grpc.messages.wire_fields import field_head, text_field
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferResponse, ParameterValue
from slipstream.router.tensors.tensor import RegionSlice, Tensor

MODEL, VERSION, ID, PARAMETERS, OUTPUTS, RAW_CONTENTS = range(1, 7)  # the numbers of the message's fields
ERROR_MESSAGE, INFER_RESPONSE = 1, 2  # of the stream's message
Part = bytes | bytearray | memoryview


def encoded_response(response: InferResponse, outputs: Sequence[Tensor], placed: frozenset[str] = frozenset()) -> bytes:
    """`outputs` are those of the response, or what the client has asked for instead. Those that are `placed` lie in the
    client's shared memory, and their contents are empty here. Raises INTERNAL for what a message cannot carry: a number
    of over 64 bits, a text that is no UTF-8."""
    return b"".join(_parts(response, outputs, placed, response.parameters))


def encoded_in_stream(
    response: InferResponse, outputs: Sequence[Tensor], placed: frozenset[str], *, is_final: bool
) -> bytes:
    """The same with the parameter that says whether it is the request's last response. Raises as it does."""
    parameters = {**response.parameters, "triton_final_response": is_final}
    parts = list(_parts(response, outputs, placed, parameters))
    return b"".join((field_head(INFER_RESPONSE, sum(map(_size, parts))), *parts))


def encoded_end(model: str, request_id: str) -> bytes:
    """Says in a stream that a request has no more responses."""
    return _inner(_no_outputs(model, request_id, is_final=True))


def encoded_failure(text: str, model: str, request_id: str, *, is_final: bool) -> bytes:
    """An error of a request that has run, in a stream."""
    return text_field(ERROR_MESSAGE, text) + _inner(_no_outputs(model, request_id, is_final=is_final))


def encoded_refusal(text: str, request_id: str) -> bytes:
    """An error of a request that was not accepted, in a stream."""
    return text_field(ERROR_MESSAGE, text) + _inner(text_field(ID, request_id))


def _inner(message: bytes) -> bytes:
    return field_head(INFER_RESPONSE, len(message)) + message


def _no_outputs(model: str, request_id: str, *, is_final: bool) -> bytes:
    return text_field(MODEL, model) + text_field(ID, request_id) + _parameter("triton_final_response", is_final)


def _parts(
    response: InferResponse,
    outputs: Sequence[Tensor],
    placed: frozenset[str],
    parameters: Mapping[str, ParameterValue],
) -> Iterator[Part]:
    yield _beginning(response.model, response.model_version)
    if response.id:
        yield text_field(ID, response.id)
    for name, value in parameters.items():
        yield _final_parameter(value) if name == "triton_final_response" else _parameter(name, value)
    for output in outputs:
        yield _output(output.name, output.datatype, output.shape)
    for output in outputs:
        data = output.data.view if isinstance(output.data, RegionSlice) else output.data
        if output.name in placed:
            yield field_head(RAW_CONTENTS, 0)
        else:
            yield field_head(RAW_CONTENTS, _size(data))
            yield data


def _size(part: Part) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)


@lru_cache(maxsize=1024)
def _beginning(model: str, version: str) -> bytes:
    return text_field(MODEL, model) + text_field(VERSION, version)


@lru_cache(maxsize=1024)
def _output(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """The output's field, whose contents are in the raw ones."""
    try:
        output = service_pb2.ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=shape)
        encoded: bytes = output.SerializeToString()
    except ValueError as error:
        raise _unwritable(f"output '{name}' of shape {list(shape)}", error) from error
    return field_head(OUTPUTS, len(encoded)) + encoded


@lru_cache(maxsize=2)
def _final_parameter(is_final: ParameterValue) -> bytes:
    return _parameter("triton_final_response", is_final)


def _parameter(name: str, value: ParameterValue) -> bytes:
    try:
        entry = service_pb2.ModelInferResponse.ParametersEntry(key=name)
        if isinstance(value, bool):
            entry.value.bool_param = value
        elif isinstance(value, int):
            entry.value.int64_param = value
        elif isinstance(value, float):
            entry.value.double_param = value
        else:
            entry.value.string_param = value
        encoded: bytes = entry.SerializeToString()
    except ValueError as error:
        raise _unwritable(f"parameter '{name}'", error) from error
    return field_head(PARAMETERS, len(encoded)) + encoded


def _unwritable(what: str, error: ValueError) -> InferError:
    message = f"failed to write {what} of the response: {error}"
    return InferError(message.encode("utf-8", "backslashreplace").decode(), InferErrorCode.INTERNAL)
