"""Control inputs, implicit state, and the inputs of an empty place."""

from __future__ import annotations

import struct

import pytest

from slipstream.router.batching.control_inputs import correlation_bytes
from slipstream.router.batching.scheduler import BatchItem
from slipstream.router.batching.sequence_batcher import SequenceBatcher
from slipstream.router.tensors.model_spec import ImplicitStateSpec, InitialState, SequenceBatching, SequenceControl
from slipstream.router.tensors.tensor import Tensor
from tests.support.router.batching.made_requests import spec_of, step

INSTANCE = "m_0_0"
CONTROLS = (
    SequenceControl("CORRID", "CORRID", "UINT64"),
    SequenceControl("START", "START", "FP32", (-1, 1)),
    SequenceControl("END", "END", "INT32", (0, 5)),
    SequenceControl("READY", "READY", "BOOL"),
)
STATE = ImplicitStateSpec("STATE_IN", "STATE_OUT", "INT32", (-1, 2))


def batcher(max_batch_size: int = 2, states: tuple[ImplicitStateSpec, ...] = ()) -> SequenceBatcher:
    batching = SequenceBatching(controls=CONTROLS, states=states)
    scheduler = SequenceBatcher(spec_of(max_batch_size=max_batch_size, sequence_batching=batching), batching)
    scheduler.add_instance(INSTANCE, 0.0)
    return scheduler


def take(scheduler: SequenceBatcher) -> tuple[BatchItem, ...]:
    batch = scheduler.take(INSTANCE, 0.0)
    assert batch is not None
    return batch.items


def execute(scheduler: SequenceBatcher, outputs: list[Tensor]) -> None:
    batch = scheduler.take(INSTANCE, 0.0)
    assert batch is not None
    for request in batch.requests:
        scheduler.store_states(request, outputs)
    scheduler.executed(batch, INSTANCE, 0.0)


def values(item: BatchItem) -> tuple[float, int, bool, int]:
    """START, END, READY, CORRID."""
    data = {tensor.name: bytes(tensor.view) for tensor in item.extra_inputs}
    (start,), (end,) = struct.unpack("<f", data["START"]), struct.unpack("<i", data["END"])
    return start, end, data["READY"] == b"\1", int.from_bytes(data["CORRID"], "little")


def test_the_controls_say_where_in_its_sequence_a_request_is() -> None:
    scheduler = batcher(max_batch_size=1)
    for start, end in ((True, False), (False, False), (False, True), (True, True)):
        scheduler.add(step("a", start=start, end=end), 0.0)
    seen = []
    for _ in range(4):
        (item,) = take(scheduler)
        seen.append(values(item))
    assert seen == [(1, 0, True, 97), (-1, 0, True, 97), (-1, 5, True, 97), (1, 5, True, 97)]


def test_controls_have_one_element_and_a_batch_dimension_if_the_model_batches() -> None:
    for max_batch_size, shape in ((0, (1,)), (2, (1, 1))):
        scheduler = batcher(max_batch_size)
        scheduler.add(step("a", start=True), 0.0)
        assert {tensor.shape for tensor in take(scheduler)[0].extra_inputs} == {shape}


def test_an_empty_place_has_zero_inputs_and_is_not_ready() -> None:
    scheduler = batcher()
    for name in "ab":
        scheduler.add(step(name, start=True), 0.0)
    execute(scheduler, [])
    scheduler.add(step("b", shapes={"X": (1, 3)}), 0.0)
    empty, item = take(scheduler)
    assert empty.request is None
    assert values(empty) == (-1, 0, False, 0)
    assert empty.extra_inputs[0] == Tensor("X", "FP32", (1, 3), bytes(12))
    assert [tensor.name for tensor in empty.extra_inputs] == ["X", "START", "END", "READY", "CORRID"]
    assert [tensor.name for tensor in item.extra_inputs] == ["START", "END", "READY", "CORRID"]


@pytest.mark.parametrize(
    ("correlation_id", "datatype", "expected"),
    [
        (2**63 + 5, "UINT64", (2**63 + 5).to_bytes(8, "little")),
        (2**40 + 7, "INT32", (7).to_bytes(4, "little")),
        ("ab", "BYTES", b"\2\0\0\0ab"),
        (12, "BYTES", b"\2\0\0\0" + b"12"),
        (0, "BYTES", b"\0\0\0\0"),
    ],
)
def test_the_correlation_id_in_the_type_of_its_input(correlation_id: int | str, datatype: str, expected: bytes) -> None:
    assert correlation_bytes(correlation_id, datatype) == expected


def test_a_text_as_a_numeric_correlation_id_is_hashed() -> None:
    one, other = correlation_bytes("one", "UINT64"), correlation_bytes("other", "UINT64")
    assert len(one) == 8
    assert one != other
    assert correlation_bytes("one", "INT32") == one[:4]


def state_of(item: BatchItem) -> Tensor:
    (state,) = [tensor for tensor in item.extra_inputs if tensor.name == "STATE_IN"]
    return state


def test_the_state_of_one_request_is_an_input_of_the_next_one_and_zero_at_a_start() -> None:
    scheduler = batcher(max_batch_size=1, states=(STATE,))
    for start in (True, False, True):
        scheduler.add(step("a", start=start), 0.0)
    output = Tensor("STATE_OUT", "INT32", (1, 3, 2), bytes(range(24)))
    batch = scheduler.take(INSTANCE, 0.0)
    assert batch is not None
    assert state_of(batch.items[0]) == Tensor("STATE_IN", "INT32", (1, 1, 2), bytes(8))
    scheduler.store_states(batch.requests[0], [Tensor("Y", "FP32", (1,), bytes(4)), output])
    scheduler.executed(batch, INSTANCE, 0.0)
    (item,) = take(scheduler)
    assert state_of(item) == Tensor("STATE_IN", "INT32", (1, 3, 2), bytes(range(24)))
    (item,) = take(scheduler)
    assert state_of(item).data == bytes(8)


def test_an_initial_state_is_given_at_the_start() -> None:
    initial = InitialState("INT32", (1, 2), bytes(range(8)))
    state = ImplicitStateSpec("STATE_IN", "STATE_OUT", "INT32", (-1, 2), initial)
    scheduler = batcher(max_batch_size=1, states=(state,))
    scheduler.add(step("a", start=True), 0.0)
    assert state_of(take(scheduler)[0]) == Tensor("STATE_IN", "INT32", (1, 1, 2), bytes(range(8)))


def test_an_empty_place_has_a_zero_state_and_leaves_the_sequence_its_own() -> None:
    scheduler = batcher(states=(STATE,))
    for name in "ab":
        scheduler.add(step(name, start=True), 0.0)
    execute(scheduler, [Tensor("STATE_OUT", "INT32", (1, 1, 2), b"\1" * 8)])
    scheduler.add(step("b"), 0.0)
    empty, item = take(scheduler)
    assert state_of(empty).data == bytes(8)
    assert state_of(item).data == b"\1" * 8
