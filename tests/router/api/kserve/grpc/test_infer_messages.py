"""Messages of inference, read and written without protobuf's copies."""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from slipstream.router.api.kserve.grpc.messages.infer_request_message import InferRequestMessage, InferRequestReader
from slipstream.router.api.kserve.grpc.messages.infer_response_message import (
    encoded_in_stream,
    encoded_refusal,
    encoded_response,
)
from slipstream.router.tensor_memory.client_regions import ClientRegions
from slipstream.router.tensor_memory.region_pool import INLINE_BYTES, RegionPool
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, SequenceFlags
from slipstream.router.tensors.tensor import RegionSlice, Tensor
from tests.support.router.grpc_lab import infer_request

SHAPES = st.lists(st.integers(0, 2**40), max_size=4)
PARAMETERS = st.dictionaries(
    st.text(min_size=1, max_size=5), st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5), max_size=3
)


@st.composite
def messages(draw: st.DrawFn) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(
        model_name=draw(st.text(max_size=5)), model_version=draw(st.text(max_size=2)), id=draw(st.text(max_size=5))
    )
    for shape in draw(st.lists(SHAPES, max_size=3)):
        request.inputs.add(name=draw(st.text(max_size=3)), datatype=draw(st.text(max_size=4)), shape=shape)
    for contents in draw(st.lists(st.binary(max_size=300) | st.just(bytes(INLINE_BYTES + 1)), max_size=3)):
        request.raw_input_contents.append(contents)
    for name in draw(st.lists(st.text(max_size=3), max_size=2)):
        request.outputs.add(name=name)
    for name, value in draw(PARAMETERS).items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], kind, value)
    return request


@given(messages())
def test_a_request_is_read_as_protobuf_reads_it(request_message: pb.ModelInferRequest) -> None:
    message = InferRequestMessage.parse(request_message.SerializeToString())
    assert (message.model, message.version, message.id) == (
        request_message.model_name,
        request_message.model_version,
        request_message.id,
    )
    inputs = [pb.ModelInferRequest.InferInputTensor.FromString(bytes(part)) for part in message.inputs]
    assert inputs == list(request_message.inputs)
    assert [bytes(part) for part in message.raw_contents] == list(request_message.raw_input_contents)
    assert len(message.outputs) == len(request_message.outputs)
    assert len(message.parameters) == len(request_message.parameters)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_an_error(data: bytes) -> None:
    with RegionPool() as pool, suppress(InferError):
        InferRequestReader(pool, ClientRegions()).read(InferRequestMessage.parse(data), InferRequest(""))


@given(messages(), st.data())
def test_a_damaged_request_is_a_request_or_an_error(request_message: pb.ModelInferRequest, data: st.DataObject) -> None:
    encoded = bytearray(request_message.SerializeToString())
    if encoded:
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with RegionPool() as pool:
        request = InferRequest("")
        try:
            InferRequestReader(pool, ClientRegions()).read(InferRequestMessage.parse(bytes(encoded)), request)
        except InferError:
            request.release = None
        if request.release is not None:
            request.release()
        assert pool.usage.num_leases == 0


def test_fields_of_a_later_version_are_passed_over() -> None:
    extended = infer_request(request_id="7").SerializeToString() + b"\xf8\x07\x05"  # field 127, a number
    message = InferRequestMessage.parse(extended)
    assert (message.model, message.id, len(message.inputs), len(message.raw_contents)) == ("add_sub", "7", 2, 2)


def test_a_length_without_an_end_is_refused_at_once() -> None:
    begin = time.process_time()
    with pytest.raises(InferError):
        InferRequestMessage.parse(b"\x0a" + b"\xff" * 1_000_000)
    assert time.process_time() - begin < 0.5


def read(request_message: pb.ModelInferRequest, pool: RegionPool) -> InferRequest:
    request = InferRequest("")
    message = InferRequestMessage.parse(request_message.SerializeToString())
    InferRequestReader(pool, ClientRegions()).read(message, request)
    return request


def test_large_inputs_go_to_shared_memory_until_the_request_ends() -> None:
    large = np.arange(INLINE_BYTES // 4 + 1, dtype=np.float32)
    with RegionPool() as pool:
        request = read(infer_request(array=large), pool)
        assert all(isinstance(tensor.data, RegionSlice) for tensor in request.inputs)
        assert [bytes(tensor.view) for tensor in request.inputs] == [large.tobytes()] * 2
        assert pool.usage.num_leases == 1
        assert request.release is not None
        request.release()
        assert pool.usage.num_leases == 0


def test_small_inputs_stay_as_they_are() -> None:
    with RegionPool() as pool:
        request = read(infer_request(), pool)
        assert request.release is None
        assert [type(tensor.data) for tensor in request.inputs] == [bytes, bytes]
        assert [tensor.shape for tensor in request.inputs] == [(1, 4), (1, 4)]


def test_a_full_pool_refuses_large_inputs() -> None:
    with RegionPool(limit_bytes=1 << 20) as pool, pytest.raises(InferError) as caught:
        read(infer_request(array=np.zeros(1 << 20, np.float32)), pool)
    assert caught.value.code is InferErrorCode.UNAVAILABLE


def test_parameters_say_which_sequence_and_priority_a_request_has() -> None:
    parameters = {"sequence_id": 5, "sequence_start": True, "priority": 2, "timeout": 9, "own": "x", "other": 1.5}
    with RegionPool() as pool:
        request = read(infer_request(**parameters), pool)
    assert request.sequence == SequenceFlags(5, is_start=True)
    assert (request.priority, request.timeout_us) == (2, 9)
    assert request.parameters == {"own": "x", "other": 1.5}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"triton_x": 1}, "parameter keys starting with 'triton_' are reserved for Triton usage."),
        ({"priority": "x"}, "invalid value type for 'priority' parameter, expected int64_param or uint64_param."),
        ({"priority": -1}, "invalid value for 'priority', expected value >= 0."),
        ({"timeout": True}, "invalid value type for 'timeout' parameter, expected int64_param."),
        ({"sequence_id": 1.5}, "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."),
        ({"sequence_start": 1}, "invalid value type for 'sequence_start' parameter, expected bool_param."),
    ],
)
def test_wrong_parameters_are_refused_in_tritons_words(
    parameters: dict[str, bool | int | str | float], text: str
) -> None:
    with RegionPool() as pool, pytest.raises(InferError) as caught:
        read(infer_request(**parameters), pool)
    assert caught.value.message.startswith(text)


@pytest.mark.parametrize(
    ("datatype", "field", "elements", "data"),
    [
        ("BOOL", "bool_contents", [True, False], b"\x01\x00"),
        ("INT8", "int_contents", [-1, -129], b"\xff\x7f"),
        ("UINT16", "uint_contents", [1, 65537], b"\x01\x00\x01\x00"),
        ("INT64", "int64_contents", [-2], b"\xfe" + b"\xff" * 7),
        ("UINT64", "uint64_contents", [2**64 - 1], b"\xff" * 8),
        ("FP32", "fp32_contents", [0.5], b"\x00\x00\x00?"),
        ("FP64", "fp64_contents", [0.5], b"\x00" * 6 + b"\xe0?"),
        ("BYTES", "bytes_contents", [b"ab", b""], b"\x02\x00\x00\x00ab\x00\x00\x00\x00"),
    ],
)
def test_elements_in_the_message_become_the_bytes_of_their_datatype(
    datatype: str, field: str, elements: list[object], data: bytes
) -> None:
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="X", datatype=datatype, shape=[len(elements)])
    getattr(tensor.contents, field).extend(elements)
    with RegionPool() as pool:
        assert read(request, pool).inputs[0].data == data


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "INT8"])
def test_elements_of_another_datatype_are_refused(datatype: str) -> None:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="X", datatype=datatype, shape=[1]).contents.fp32_contents.append(1.5)
    with RegionPool() as pool, pytest.raises(InferError) as caught:
        read(request, pool)
    problem = "unexpected explicit tensor data for input tensor 'X' for model 'm' of type 'FP32'"
    assert caught.value.message == f"{problem}, expected datatype '{datatype}'"


@given(st.lists(st.tuples(st.text(max_size=4), SHAPES, st.binary(max_size=200)), max_size=3), PARAMETERS)
def test_a_response_is_written_so_that_protobuf_reads_it(
    outputs: list[tuple[str, list[int], bytes]], parameters: dict[str, bool | int | str]
) -> None:
    tensors = [Tensor(name, "FP32", tuple(shape), data) for name, shape, data in outputs]
    response = InferResponse("m", "3", "id", tensors, dict(parameters))
    parsed = pb.ModelInferResponse.FromString(encoded_response(response, tensors))
    assert (parsed.model_name, parsed.model_version, parsed.id) == ("m", "3", "id")
    assert [(o.name, list(o.shape)) for o in parsed.outputs] == [(name, shape) for name, shape, _ in outputs]
    assert list(parsed.raw_output_contents) == [data for _, _, data in outputs]
    got = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in parsed.parameters.items()}
    assert got == parameters
    in_stream = encoded_in_stream(response, tensors, frozenset(), is_final=True)
    within = pb.ModelStreamInferResponse.FromString(in_stream).infer_response
    assert within.parameters["triton_final_response"].bool_param
    del within.parameters["triton_final_response"]
    if "triton_final_response" not in parameters:
        assert within == parsed


@pytest.mark.parametrize("value", [1 << 63, "\ud800"])
def test_a_parameter_that_no_message_can_carry_is_an_error_of_the_request(value: int | str) -> None:
    response = InferResponse("m", "1", "", [], {"big": value})
    with pytest.raises(InferError, match="failed to write parameter 'big' of the response"):
        encoded_response(response, [])


def test_a_shape_that_no_message_can_carry_is_an_error_of_the_request() -> None:
    outputs = [Tensor("X", "FP32", (1 << 63,), b"")]
    with pytest.raises(InferError, match="failed to write output 'X'"):
        encoded_response(InferResponse("m", "1", "", outputs), outputs)


def test_an_error_whose_text_is_no_utf8_can_be_sent() -> None:
    message = pb.ModelStreamInferResponse.FromString(encoded_refusal("no file \udcff", "7"))
    assert message.error_message == "no file \\udcff"
