"""Requests are checked with Triton's order and texts."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from slipstream.router.infer.requests.request_check import MAX_UNEQUAL_TEXTS, RequestCheck
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, RequestedOutput
from slipstream.router.tensors.model_spec import ModelSpec, TensorSpec
from slipstream.router.tensors.tensor import Tensor

A = TensorSpec("A", "FP32", (4,))
B = TensorSpec("B", "FP32", (4,))
SUM = TensorSpec("SUM", "FP32", (4,))


def spec_of(*inputs: TensorSpec, max_batch_size: int = 8) -> ModelSpec:
    return ModelSpec("M", "1", Path("/"), "python", "", max_batch_size, inputs, (SUM,), b"{}")


def tensor(name: str, *shape: int, datatype: str = "FP32", num_bytes: int | None = None) -> Tensor:
    size = 4
    for dim in shape:
        size *= dim
    return Tensor(name, datatype, shape, bytes(size if num_bytes is None else num_bytes))


def strings(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def problem(spec: ModelSpec, *inputs: Tensor, outputs: tuple[str, ...] = (), request_id: str = "") -> str:
    requested = tuple(map(RequestedOutput, outputs))
    request = InferRequest("M", id=request_id, inputs=list(inputs), requested=requested)
    with pytest.raises(InferError) as caught:
        RequestCheck(spec).check(request)
    assert caught.value.code is InferErrorCode.INVALID_ARG
    return caught.value.message


def test_a_good_request_has_as_many_rows_as_its_first_dimension() -> None:
    request = InferRequest("M", inputs=[tensor("A", 3, 4), tensor("B", 3, 4)])
    assert RequestCheck(spec_of(A, B)).check(request) == 3


def test_a_model_that_does_not_batch_takes_the_whole_shape() -> None:
    request = InferRequest("M", inputs=[tensor("A", 4)])
    assert RequestCheck(spec_of(A, max_batch_size=0)).check(request) == 1


def test_unknown_outputs_are_found_before_missing_inputs() -> None:
    text = problem(spec_of(A, B), tensor("A", 1, 4), outputs=("X",))
    assert text == "unexpected inference output 'X' for model 'M'"


def test_a_missing_input_is_named() -> None:
    text = problem(spec_of(A, B), tensor("A", 1, 4), request_id="7")
    assert text == (
        "[request id: 7] expected 2 inputs but got 1 inputs for model 'M'. Got input(s) ['A'], but missing required "
        "input(s) ['B']. Please provide all required input(s)."
    )


def test_a_range_is_given_where_inputs_are_optional() -> None:
    optional = TensorSpec("B", "FP32", (4,), is_optional=True)
    assert "expected number of inputs between 1 and 2 but got 0 inputs for model 'M'" in problem(spec_of(A, optional))


def test_optional_inputs_do_not_stand_for_required_ones() -> None:
    optional = TensorSpec("B", "FP32", (4,), is_optional=True)
    assert "missing required input(s) ['A']" in problem(spec_of(A, optional), tensor("B", 1, 4))


def test_an_input_that_is_given_twice_is_refused_even_if_the_number_fits() -> None:
    text = problem(spec_of(A, B), tensor("A", 1, 4), tensor("A", 1, 4), request_id="7")
    assert text == "[request id: 7] input 'A' already exists in request"


def test_an_unknown_input_is_named() -> None:
    text = problem(spec_of(A, B), tensor("A", 1, 4), tensor("X", 1, 4))
    assert text == "unexpected inference input 'X' for model 'M'"


def test_batch_sizes_must_match_and_fit() -> None:
    uneven = problem(spec_of(A, B), tensor("A", 1, 4), tensor("B", 2, 4))
    assert uneven.endswith("input 'B' batch size does not match other inputs for 'M'")
    assert problem(spec_of(A), tensor("A", 9, 4)).endswith("inference request batch-size must be <= 8 for 'M'")
    no_shape = problem(spec_of(A), tensor("A"))
    assert no_shape.endswith("input 'A' has no shape but model requires batch dimension for 'M'")


def test_the_datatype_is_checked_before_the_shape() -> None:
    text = problem(spec_of(A), tensor("A", 1, 3, datatype="INT32"))
    assert text.endswith("inference input 'A' data-type is 'INT32', but model 'M' expects 'FP32'")


def test_a_wrong_shape_is_told_with_the_note_on_the_batch_dimension() -> None:
    text = problem(spec_of(A), tensor("A", 1, 3))
    assert "unexpected shape for input 'A' for model 'M'. Expected [-1,4], got [1,3]. NOTE: Setting a non-zero" in text
    plain = problem(spec_of(A, max_batch_size=0), tensor("A", 3))
    assert plain.endswith("unexpected shape for input 'A' for model 'M'. Expected [4], got [3]. ")


def test_wildcards_take_any_size_but_not_minus_one() -> None:
    spec = spec_of(TensorSpec("A", "FP32", (-1, 2)))
    assert RequestCheck(spec).check(InferRequest("M", inputs=[tensor("A", 1, 5, 2)])) == 1
    text = problem(spec, Tensor("A", "FP32", (1, -1, 2), b""))
    assert "All input dimensions should be specified for input 'A' for model 'M', got [1,-1,2]" in text


def test_the_size_in_bytes_must_fit_the_shape() -> None:
    text = problem(spec_of(A), tensor("A", 2, 4, num_bytes=30))
    assert text.endswith("input byte size mismatch for input 'A' for model 'M'. Expected 32, got 30")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (strings(b"ab"), "expected 2 string elements for inference input 'A' for model 'M', got 1"),
        (strings(b"a", b"b", b"c"), "unexpected number of string elements 3"),
        (strings(b"a", b"b")[:-2], "incomplete string length indicator"),
        (strings(b"a", b"bcd")[:-2], "incomplete string data"),
    ],
)
def test_elements_of_bytes_are_counted(data: bytes, text: str) -> None:
    spec = spec_of(TensorSpec("A", "BYTES", (2,)))
    assert text in problem(spec, Tensor("A", "BYTES", (1, 2), data))


def test_the_model_sees_the_reshaped_input() -> None:
    spec = spec_of(TensorSpec("A", "FP32", (-1, 2), reshape=(2, 1, -1)))
    request = InferRequest("M", inputs=[tensor("A", 3, 5, 2)])
    RequestCheck(spec).check(request)
    assert request.inputs[0].shape == (3, 2, 1, 5)


def texts_check(data: bytes, num_elements: int) -> None:
    spec = spec_of(TensorSpec("A", "BYTES", (-1,)), max_batch_size=0)
    RequestCheck(spec).check(InferRequest("M", inputs=[Tensor("A", "BYTES", (num_elements,), data)]))


def test_millions_of_equally_long_texts_take_no_step_each() -> None:
    num_elements = 4_000_000
    begin = time.process_time()
    texts_check(strings(b"a") * num_elements, num_elements)
    assert time.process_time() - begin < 0.4


@pytest.mark.parametrize(
    "data", [strings(b"a", b"b", b"cc") + strings(b""), strings(b"", b"", b"", b""), strings(*[b"abc"] * 4)]
)
def test_texts_of_any_lengths_are_counted(data: bytes) -> None:
    texts_check(data, 4)
    for spoiled, num_elements in ((data[:-1], 4), (data + b"\0", 4), (data, 3), (data, 5), (b"\5" + data[1:], 4)):
        with pytest.raises(InferError):
            texts_check(spoiled, num_elements)


def test_more_texts_of_unequal_lengths_than_can_be_counted_in_time_are_refused() -> None:
    num_elements = MAX_UNEQUAL_TEXTS + 1
    with pytest.raises(InferError, match="too many string elements 1048577 for inference input 'A' for model 'M'"):
        texts_check(strings(b"a") + strings(b"") * MAX_UNEQUAL_TEXTS, num_elements)
