"""Runs of ensembles: which steps start when and with what, what the client hears, and that all memory goes back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.infer.ensembles.held_tensors import HeldTensor, SharedLease
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode, cancelled_by_client
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, RequestedOutput, SequenceFlags
from slipstream.router.tensors.model_spec import EnsembleStep, ModelSpec
from slipstream.router.tensors.tensor import Tensor
from tests.support.router.ensemble_lab import RunLab, lab_of, model, number, step

A, B, C = model("a"), model("b"), model("c")
STREAM = model("stream", is_decoupled=True)
CHAIN = model(
    "E",
    steps=(
        step("a", {"IN": "IN"}, {"OUT": "x"}),
        step("stream", {"IN": "x"}, {"OUT": "y"}),
        step("b", {"IN": "y"}, {"OUT": "OUT"}),
    ),
)
FORK = model(
    "E",
    outputs="O1 O2",
    steps=(step("a", {"IN": "IN"}, {"OUT": "O1"}), step("b", {"IN": "IN"}, {"OUT": "O2"})),
)
ADD = model("add", "A B", "OUT")
JOIN = model(
    "E",
    steps=(
        step("a", {"IN": "IN"}, {"OUT": "x"}),
        step("b", {"IN": "IN"}, {"OUT": "y"}),
        step("add", {"A": "x", "B": "y"}, {"OUT": "OUT"}),
    ),
)


def test_a_step_starts_when_all_its_inputs_are_there() -> None:
    lab = lab_of(JOIN, A, B, ADD).begin(IN=1)
    assert [run.step.model for run in lab.started] == ["a", "b"]
    lab.answer("b", OUT=20)
    assert [run.step.model for run in lab.started] == ["a"]
    lab.answer("a", OUT=10)
    assert lab.inputs_of("add") == {"A": 10, "B": 20}
    lab.answer("add", OUT=30)
    assert (lab.responses, lab.end, lab.num_held) == ([{"OUT": 30}], "response", 0)


def test_only_the_steps_run_that_the_requested_outputs_need() -> None:
    lab = lab_of(FORK, A, B).begin(InferRequest("E", requested=(RequestedOutput("O2"),)), IN=1)
    assert [run.step.model for run in lab.started] == ["b"]
    lab.answer("b", OUT=5)
    assert (lab.responses, lab.end, lab.num_held) == ([{"O2": 5}], "response", 0)


def test_an_input_that_is_an_output_needs_no_step() -> None:
    spec = model("E", outputs="IN OUT", steps=(step("a", {"IN": "IN"}, {"OUT": "OUT"}),))
    lab = lab_of(spec, A).begin(InferRequest("E", requested=(RequestedOutput("IN"),)), IN=4)
    assert (lab.started, lab.responses) == ([], [])  # nothing is answered while a request is submitted
    lab.run.settle()
    assert (lab.responses, lab.end, lab.num_held) == ([{"IN": 4}], "response", 0)


def test_a_client_may_cancel_when_it_gets_a_response() -> None:
    lab = lab_of(CHAIN, A, STREAM, B).begin(IN=1)
    lab.answer("a", OUT=2)
    lab.answer("stream", OUT=3, is_final=False)
    first = lab.running("b")
    lab.answer("stream", OUT=4)
    lab.started.remove(first)
    lab.answer("b", OUT=40)
    lab.started.append(first)
    lab.cancels_at_response = True
    lab.answer("b", OUT=30)  # both may leave now
    assert (lab.responses, lab.end, lab.num_held) == ([{"OUT": 30}], "failure", 0)


def test_inputs_are_given_back_when_the_last_step_that_reads_them_has_ended() -> None:
    lab = lab_of(FORK, A, B).begin(IN=1)
    lab.answer("a", OUT=1)
    assert lab.num_held == 2  # the inputs, and what `a` gave
    lab.answer("b", OUT=2)
    assert lab.num_held == 0


def test_each_response_of_a_decoupled_step_runs_the_steps_behind_it() -> None:
    lab = lab_of(CHAIN, A, STREAM, B).begin(IN=1)
    lab.answer("a", OUT=2)
    lab.answer("stream", OUT=3, is_final=False)
    lab.answer("b", OUT=30)
    assert (lab.responses, lab.end) == ([{"OUT": 30}], "")
    lab.answer("stream", OUT=4)
    lab.answer("b", OUT=40)
    assert (lab.responses, lab.end, lab.num_held) == ([{"OUT": 30}, {"OUT": 40}], "response", 0)


def test_responses_leave_in_the_order_of_the_waves() -> None:
    lab = lab_of(CHAIN, A, STREAM, B).begin(IN=1)
    lab.answer("a", OUT=2)
    lab.answer("stream", OUT=3, is_final=False)
    first = lab.running("b")
    lab.answer("stream", OUT=4)
    lab.started.remove(first)  # the second run of `b` is faster
    lab.answer("b", OUT=40)
    assert lab.responses == []
    lab.started.append(first)
    lab.answer("b", OUT=30)
    assert (lab.responses, lab.end, lab.num_held) == ([{"OUT": 30}, {"OUT": 40}], "response", 0)


def test_a_decoupled_ensemble_may_end_without_a_response() -> None:
    lab = lab_of(CHAIN, A, STREAM, B).begin(IN=1)
    lab.answer("a", OUT=2)
    lab.complete_step("stream")
    assert (lab.responses, lab.end, lab.num_held) == ([], "complete", 0)


def test_the_end_of_a_stream_follows_its_last_response() -> None:
    lab = lab_of(CHAIN, A, STREAM, B).begin(IN=1)
    lab.answer("a", OUT=2)
    lab.answer("stream", OUT=3, is_final=False)
    lab.answer("b", OUT=30)
    lab.complete_step("stream")
    assert (lab.responses, lab.end, lab.num_held) == ([{"OUT": 30}], "complete", 0)


def test_streams_within_streams_keep_their_order() -> None:
    twice = model("E", steps=(step("stream", {"IN": "IN"}, {"OUT": "x"}), step("stream", {"IN": "x"}, {"OUT": "OUT"})))
    lab = lab_of(twice, STREAM).begin(IN=2)
    outer = lab.running("stream")
    for value in (10, 20):
        lab.run.responded(outer, InferResponse("stream", "1", "", [number("OUT", value)]), is_final=value == 20)
    lab.over(outer)
    first, second = lab.started
    for run, value, is_final in ((second, 21, False), (first, 11, False), (second, 22, True), (first, 12, True)):
        lab.run.responded(run, InferResponse("stream", "1", "", [number("OUT", value)]), is_final=is_final)
    lab.over(first)
    lab.over(second)
    assert [response["OUT"] for response in lab.responses] == [11, 12, 21, 22]
    assert (lab.end, lab.num_held) == ("response", 0)


def test_a_failed_step_fails_the_request_and_cancels_the_others() -> None:
    lab = lab_of(JOIN, A, B, ADD).begin(IN=1)
    other = lab.running("b")
    lab.fail_step("a", InferError("no", InferErrorCode.UNAVAILABLE, FailureReason.REJECTED))
    assert lab.error is not None
    assert (lab.error.message, lab.error.code) == ("in ensemble 'E', no", InferErrorCode.UNAVAILABLE)
    assert lab.error.reason is FailureReason.OTHER
    assert lab.cancelled == [other]
    assert lab.run.num_running == 1
    lab.answer("b", OUT=1)
    assert (lab.end, lab.run.num_running, lab.num_held, lab.started) == ("failure", 0, 0, [])


def test_an_error_among_the_responses_of_a_stream_fails_the_request() -> None:
    lab = lab_of(CHAIN, A, STREAM, B).begin(IN=1)
    lab.answer("a", OUT=2)
    run = lab.running("stream")
    lab.run.responded(run, InferResponse("stream", "1", "", [], error=InferError("bad")), is_final=False)
    assert (lab.end, lab.cancelled) == ("failure", [run])
    lab.complete_step("stream")
    assert (lab.run.num_running, lab.num_held) == (0, 0)


def test_a_refused_step_fails_the_request() -> None:
    lab = lab_of(JOIN, A, B, ADD)
    lab.refusals["b"] = InferError("full", InferErrorCode.UNAVAILABLE)
    lab.begin(IN=1)
    assert lab.error is not None
    assert lab.error.message == "in ensemble 'E', full"
    lab.answer("a", OUT=1)
    assert lab.num_held == 0


def test_a_cancelled_request_cancels_its_steps_and_starts_no_more() -> None:
    lab = lab_of(JOIN, A, B, ADD).begin(IN=1)
    lab.run.cancel(cancelled_by_client())
    assert lab.error is not None
    assert (lab.error.code, len(lab.cancelled)) == (InferErrorCode.CANCELLED, 2)
    lab.answer("a", OUT=1)
    lab.answer("b", OUT=1)
    assert (lab.started, lab.responses, lab.num_held) == ([], [], 0)


def test_an_optional_input_that_was_left_out_is_left_out_of_the_step() -> None:
    spec = model("E", optional="MORE", steps=(step("add", {"A": "IN", "B": "MORE"}, {"OUT": "OUT"}),))
    lab = lab_of(spec, model("add", "A", optional="B")).begin(IN=1)
    assert lab.inputs_of("add") == {"A": 1}
    lab.answer("add", OUT=1)
    assert lab.num_held == 0


def test_a_step_runs_without_the_output_that_the_one_before_did_not_give() -> None:
    two = model("two", outputs="OUT OUT2")
    steps = (step("two", {"IN": "IN"}, {"OUT": "x", "OUT2": "y"}), step("add", {"A": "x", "B": "y"}, {"OUT": "OUT"}))
    lab = lab_of(model("E", steps=steps), two, model("add", "A", optional="B")).begin(IN=1)
    lab.answer("two", OUT=5)
    assert lab.inputs_of("add") == {"A": 5}


def test_a_model_that_gives_no_response_at_all_is_a_deadlock() -> None:
    lab = lab_of(JOIN, A, B, ADD).begin(IN=1)
    lab.complete_step("a")
    lab.answer("b", OUT=1)
    assert lab.error is not None
    assert lab.error.message == (
        "in ensemble 'E', [request id: R] unexpected deadlock, at least one output is not set while no more ensemble "
        "steps can be made"
    )
    assert (lab.error.code, lab.num_held) == (InferErrorCode.INVALID_ARG, 0)


def test_responses_say_the_sequence_and_keep_the_parameters_of_the_outputs() -> None:
    lab = lab_of(JOIN, A, B, ADD).begin(InferRequest("E", sequence=SequenceFlags(7, is_start=True)), IN=1)
    lab.answer("a", OUT=1, parameters={"lost": 1})
    lab.answer("b", OUT=1, parameters={"sequence_id": 8, "sequence_end": True})
    assert lab.running("add").sequence == SequenceFlags(8, is_end=True)
    lab.answer("add", OUT=2, parameters={"kept": 2})
    assert lab.parameters == [{"kept": 2, "sequence_id": 8, "sequence_start": False, "sequence_end": True}]


@pytest.mark.parametrize(
    ("shape", "batch_size", "dims", "batches", "fitted"),
    [
        ((3,), 0, (3,), True, (1, 3)),
        ((1, 3), 0, (3,), True, (1, 3)),
        ((1, 3), 1, (3,), False, (3,)),
        ((1, 3), 1, (-1, 3), False, (1, 3)),
        ((2, 3), 2, (3,), False, (2, 3)),
        ((2, 3), 2, (3,), True, (2, 3)),
    ],
)
def test_a_batch_dimension_of_one_comes_and_goes(
    shape: tuple[int, ...], batch_size: int, dims: tuple[int, ...], batches: bool, fitted: tuple[int, ...]
) -> None:
    held = HeldTensor(Tensor("x", "INT8", shape, bytes(6)), SharedLease(None), 1, batch_size)
    tensor = held.fitted("IN", dims, batches=batches)
    assert tensor is not None
    assert (tensor.name, tensor.shape) == ("IN", fitted)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[ModelSpec, list[ModelSpec]]:
    """Ensembles of up to six steps, each of which reads one to three earlier tensors and adds them up."""
    tensors, steps, models = ["IN"], [], []
    for index in range(draw(st.integers(1, 6))):
        reads = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3, unique=True))
        inputs = {f"I{number}": name for number, name in enumerate(reads)}
        models.append(model(f"m{index}", " ".join(inputs)))
        steps.append(EnsembleStep(f"m{index}", "", inputs, {"OUT": f"t{index}"}))
        tensors.append(f"t{index}")
    outputs = draw(st.lists(st.sampled_from(tensors[1:]), min_size=1, max_size=3, unique=True))
    return model("E", outputs=" ".join(outputs), steps=tuple(steps)), models


@settings(max_examples=150, deadline=None)
@given(graphs(), st.randoms(use_true_random=False), st.floats(0, 0.3))
def test_any_graph_ends_once_and_gives_all_memory_back(
    graph: tuple[ModelSpec, list[ModelSpec]], random: st.randoms, fails: float
) -> None:
    spec, models = graph
    expected = {"IN": 3}
    for one in spec.steps:
        expected[one.outputs["OUT"]] = sum(expected[name] for name in one.inputs.values()) + 1
    lab: RunLab = lab_of(spec, *models).begin(IN=3)
    has_failed = False
    while lab.started:
        run = random.choice(lab.started)
        if random.random() < fails:
            has_failed = True
            lab.fail_step(run.step.model, InferError("no"))
        else:
            lab.answer(run.step.model, OUT=sum(lab.inputs_of(run.step.model).values()) + 1)
    assert lab.num_held == 0
    assert lab.run.num_running == 0
    if has_failed:
        assert lab.end == "failure"
    else:
        assert lab.responses == [{tensor.name: expected[tensor.name] for tensor in spec.outputs}]
