"""The sequence batcher: slots, backlog, strategies, and the ways in which a sequence ends."""

from __future__ import annotations

import pytest

from slipstream.router.batching.sequence_batcher import SequenceBatcher
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode
from slipstream.router.tensors.infer_request import SequenceFlags
from slipstream.router.tensors.model_spec import SequenceBatching, TensorSpec
from tests.support.router.batching.made_requests import places, queued, spec_of, step

INSTANCE = "m_0_0"
OTHER = "m_0_1"


def batcher(
    max_batch_size: int = 2,
    instances: tuple[str, ...] = (INSTANCE,),
    inputs: tuple[TensorSpec, ...] = (),
    **settings: object,
) -> SequenceBatcher:
    batching = SequenceBatching(**settings)  # type: ignore[arg-type]
    scheduler = SequenceBatcher(
        spec_of(max_batch_size=max_batch_size, inputs=inputs, sequence_batching=batching), batching
    )
    for instance in instances:
        scheduler.add_instance(instance, 0.0)
    return scheduler


def run(scheduler: SequenceBatcher, now: float, instance: str = INSTANCE) -> list[str | None]:
    """Executes what the instance is to execute at `now`. Returns the ids of the requests by place."""
    batch = scheduler.take(instance, now)
    if batch is not None:
        scheduler.executed(batch, instance, now)
    return places(batch)


@pytest.mark.parametrize(
    ("flags", "rows", "text"),
    [
        (
            SequenceFlags(3001, is_start=True),
            2,
            "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher",
        ),
        (None, 1, "inference request to model 'm' must specify a non-zero or non-empty correlation ID"),
        (
            SequenceFlags(""),
            1,
            "inference request to model 'm' must specify a non-zero or non-empty correlation ID",
        ),
        (
            SequenceFlags(3001),
            1,
            "inference request for sequence 3001 to model 'm' must specify the START flag on the first request of the "
            "sequence",
        ),
    ],
)
def test_a_wrong_request_is_refused_with_tritons_text(flags: SequenceFlags | None, rows: int, text: str) -> None:
    with pytest.raises(InferError) as refused:
        batcher().add(queued("0", rows, sequence=flags), 0.0)
    assert (refused.value.message, refused.value.code) == (text, InferErrorCode.INVALID_ARG)


def test_the_place_in_the_batch_is_the_slot_of_the_sequence() -> None:
    scheduler = batcher(max_batch_size=3)
    for name in "abc":
        scheduler.add(step(name, start=True), 0.0)
    assert run(scheduler, 0.0) == ["a", "b", "c"]
    scheduler.add(step("b"), 0.1)
    assert run(scheduler, 0.1) == [None, "b"]


def test_one_request_of_a_sequence_runs_at_a_time() -> None:
    for strategy in ("direct", "oldest"):
        scheduler = batcher(strategy=strategy, max_candidate_sequences=4)
        scheduler.add(step("a", start=True), 0.0)
        scheduler.add(step("a"), 0.0)
        assert run(scheduler, 0.0) == ["a"]
        assert run(scheduler, 0.0) == ["a"]
        assert run(scheduler, 0.0) == []


def test_a_sequence_keeps_its_instance() -> None:
    scheduler = batcher(max_batch_size=2, instances=(INSTANCE, OTHER))
    scheduler.add(step("a", start=True), 0.0)
    scheduler.add(step("b", start=True), 0.0)
    assert (run(scheduler, 0.0, INSTANCE), run(scheduler, 0.0, OTHER)) == (["a"], ["b"])
    scheduler.add(step("a"), 0.1)
    scheduler.add(step("b"), 0.1)
    assert (run(scheduler, 0.1, OTHER), run(scheduler, 0.1, INSTANCE)) == (["b"], ["a"])


def test_an_end_gives_the_slot_to_the_first_sequence_of_the_backlog() -> None:
    scheduler = batcher(max_batch_size=1)
    scheduler.add(step("a", start=True), 0.0)
    scheduler.add(step("b", start=True), 0.0)
    scheduler.add(step("c", start=True, end=True), 0.0)
    scheduler.add(step("b", end=True), 0.0)
    assert run(scheduler, 0.0) == ["a"]
    assert run(scheduler, 0.0) == []
    scheduler.add(step("a", end=True), 0.1)
    assert [run(scheduler, 0.1) for _ in range(5)] == [["a"], ["b"], ["b"], ["c"], []]
    assert scheduler.num_sequences == 0


def test_a_start_in_the_midst_begins_anew_in_the_same_slot() -> None:
    scheduler = batcher(max_batch_size=1)
    scheduler.add(step("a", start=True), 0.0)
    scheduler.add(step("a", start=True), 0.0)
    scheduler.add(step("b", start=True), 0.0)
    assert [run(scheduler, 0.0) for _ in range(3)] == [["a"], ["a"], []]


def test_an_id_may_begin_again_while_its_end_still_waits() -> None:
    scheduler = batcher(max_batch_size=1)
    scheduler.add(step("a", start=True), 0.0)
    scheduler.add(step("a", end=True), 0.0)
    scheduler.add(step("a", start=True), 0.0)
    assert [run(scheduler, 0.0) for _ in range(4)] == [["a"], ["a"], ["a"], []]
    assert scheduler.num_sequences == 1


def test_an_idle_sequence_ends_and_needs_a_start_again() -> None:
    scheduler = batcher(max_batch_size=1, max_idle_us=1_000_000)
    scheduler.add(step("a", start=True), 0.0)
    scheduler.add(step("b", start=True), 0.5)
    assert run(scheduler, 0.5) == ["a"]
    assert scheduler.next_time == 1.5
    scheduler.due(1.5)
    assert run(scheduler, 1.5) == ["b"]
    with pytest.raises(InferError, match="must specify the START flag"):
        scheduler.add(step("a"), 1.6)


def test_a_sequence_is_not_idle_while_it_runs_or_waits() -> None:
    scheduler = batcher(max_batch_size=1, max_idle_us=1_000_000)
    scheduler.add(step("a", start=True), 0.0)
    scheduler.add(step("b", start=True), 0.0)
    batch = scheduler.take(INSTANCE, 0.0)
    assert batch is not None
    scheduler.due(5.0)
    scheduler.executed(batch, INSTANCE, 5.0)
    scheduler.add(step("a", end=True), 5.1)
    assert run(scheduler, 5.1) == ["a"]
    scheduler.due(5.2)
    assert run(scheduler, 5.2) == ["b"]
    scheduler.add(step("b"), 5.3)


def test_a_timeout_rejects_the_whole_sequence_in_the_backlog() -> None:
    scheduler = batcher(max_batch_size=1)
    scheduler.add(step("a", start=True, timeout_us=1), 0.0)
    scheduler.add(step("b", start=True, timeout_us=1_000_000), 0.0)
    scheduler.add(step("b", timeout_us=500_000), 0.25)
    assert scheduler.next_time == 0.75
    assert not scheduler.due(0.5)
    rejected = scheduler.due(0.75)
    assert [each.request.request.id for each in rejected] == ["b", "b"]
    error = rejected[0].error
    assert error.message == "timeout of the corresponding sequence has been expired"
    assert (error.code, error.reason) == (InferErrorCode.UNAVAILABLE, FailureReason.REJECTED)
    with pytest.raises(InferError):
        scheduler.add(step("b"), 0.75)


def test_direct_waits_for_slots_until_the_delay() -> None:
    scheduler = batcher(max_batch_size=4, max_queue_delay_us=100_000, minimum_slot_utilization=0.75)
    scheduler.add(step("a", start=True), 0.0)
    scheduler.add(step("b", start=True), 0.05)
    assert run(scheduler, 0.05) == []
    assert scheduler.next_time == 0.1
    assert run(scheduler, 0.1) == ["a", "b"]
    for name in "abc":
        scheduler.add(step(name, start=True), 0.2)
    assert run(scheduler, 0.2) == ["a", "b", "c"]


def test_direct_leaves_a_place_empty_whose_request_has_another_shape() -> None:
    scheduler = batcher(max_batch_size=3, inputs=(TensorSpec("X", "FP32", (-1,)),))
    for name, size in (("a", 3), ("b", 4), ("c", 3)):
        scheduler.add(step(name, start=True, shapes={"X": (1, size)}), 0.0)
    assert run(scheduler, 0.0) == ["a", None, "c"]
    assert run(scheduler, 0.0) == [None, "b"]


def test_oldest_batches_the_heads_by_preferred_size_and_delay() -> None:
    scheduler = batcher(
        max_batch_size=4,
        strategy="oldest",
        max_candidate_sequences=8,
        preferred_batch_sizes=(2,),
        max_queue_delay_us=500_000,
    )
    scheduler.add(step("a", start=True), 0.0)
    scheduler.add(step("a"), 0.0)
    assert run(scheduler, 0.0) == []
    assert scheduler.next_time == 0.5
    scheduler.add(step("b", start=True), 0.25)
    assert run(scheduler, 0.25) == ["a", "b"]
    assert run(scheduler, 0.5) == []
    scheduler.due(0.75)
    assert run(scheduler, 0.75) == ["a"]


def test_oldest_holds_more_sequences_than_a_batch_has_rows() -> None:
    scheduler = batcher(max_batch_size=2, strategy="oldest", max_candidate_sequences=3)
    for name in "abcd":
        scheduler.add(step(name, start=True), 0.0)
    assert [run(scheduler, 0.0) for _ in range(3)] == [["a", "b"], ["c"], []]
    scheduler.add(step("a", end=True), 0.1)
    assert [run(scheduler, 0.1) for _ in range(2)] == [["a"], ["d"]]


def test_a_cancelled_request_ends_its_sequence_after_the_requests_before_it() -> None:
    for strategy in ("direct", "oldest"):
        scheduler = batcher(max_batch_size=1, strategy=strategy)
        scheduler.add(step("a", start=True), 0.0)
        cancelled, behind = step("a"), step("a")
        scheduler.add(cancelled, 0.0)
        scheduler.add(behind, 0.0)
        scheduler.add(step("b", start=True), 0.0)
        assert scheduler.cancel(cancelled, 0.0)
        assert scheduler.next_time == 0.0
        (rejected,) = scheduler.due(0.0)
        assert rejected.request is behind
        assert rejected.error.code is InferErrorCode.CANCELLED
        assert [run(scheduler, 0.0) for _ in range(3)] == [["a"], ["b"], []]
        with pytest.raises(InferError):
            scheduler.add(step("a"), 0.0)


def test_a_cancelled_sequence_of_the_backlog_leaves_it() -> None:
    scheduler = batcher(max_batch_size=1)
    scheduler.add(step("a", start=True, end=True), 0.0)
    cancelled = step("b", start=True)
    scheduler.add(cancelled, 0.0)
    assert scheduler.cancel(cancelled, 0.0)
    assert not scheduler.cancel(cancelled, 0.0)
    assert [run(scheduler, 0.0) for _ in range(2)] == [["a"], []]


def test_a_running_request_is_not_cancelled() -> None:
    scheduler = batcher()
    request = step("a", start=True)
    scheduler.add(request, 0.0)
    assert scheduler.take(INSTANCE, 0.0) is not None
    assert not scheduler.cancel(request, 0.0)


def test_the_sequences_of_a_lost_instance_are_rejected_and_never_replayed() -> None:
    for strategy in ("direct", "oldest"):
        scheduler = batcher(max_batch_size=1, instances=(INSTANCE, OTHER), strategy=strategy)
        first = step("a", start=True)
        scheduler.add(first, 0.0)
        scheduler.add(step("b", start=True), 0.0)
        scheduler.add(step("c", start=True), 0.0)
        assert scheduler.take(INSTANCE, 0.0) is not None
        assert run(scheduler, 0.0, OTHER) == ["b"]
        scheduler.add(step("a"), 0.1)
        (rejected,) = scheduler.remove_instance(INSTANCE, 0.2)
        assert rejected.error.message == "sequence 97 of model 'm' is lost: instance 'm_0_0' has ended"
        assert not scheduler.retry(first, 0.2)
        with pytest.raises(InferError, match="must specify the START flag"):
            scheduler.add(step("a"), 0.3)
        scheduler.add_instance(INSTANCE, 0.4)
        assert run(scheduler, 0.4) == ["c"]


def test_a_sequence_that_has_not_begun_moves_to_another_instance() -> None:
    for strategy in ("direct", "oldest"):
        scheduler = batcher(max_batch_size=2, instances=(INSTANCE, OTHER), strategy=strategy)
        for name in "abcde":
            scheduler.add(step(name, start=True), 0.0)
        scheduler.add(step("a"), 0.0)
        assert not scheduler.remove_instance(INSTANCE, 0.1)
        assert run(scheduler, 0.1, OTHER) == ["b", "d"]
        scheduler.add(step("b", end=True), 0.2)
        scheduler.add(step("d", end=True), 0.2)
        assert run(scheduler, 0.2, OTHER) == ["b", "d"]
        assert run(scheduler, 0.2, OTHER) == ["a", "c"]


def test_requests_wait_while_there_is_no_instance() -> None:
    scheduler = batcher(instances=())
    scheduler.add(step("a", start=True), 0.0)
    assert scheduler.take(INSTANCE, 0.0) is None
    scheduler.add_instance(INSTANCE, 1.0)
    assert run(scheduler, 1.0) == ["a"]


def test_an_iterative_sequence_goes_on_as_long_as_it_is_rescheduled() -> None:
    scheduler = batcher(max_batch_size=1, is_iterative=True)
    request = queued("a")
    scheduler.add(request, 0.0)
    scheduler.add(queued("b"), 0.0)
    assert request.request.sequence == SequenceFlags(1, is_start=True)
    batch = scheduler.take(INSTANCE, 0.0)
    assert batch is not None
    scheduler.reschedule(request, 0.1)
    scheduler.executed(batch, INSTANCE, 0.1)
    assert request.request.sequence == SequenceFlags(1)
    assert [run(scheduler, 0.2) for _ in range(3)] == [["a"], ["b"], []]
    assert scheduler.num_sequences == 0


def test_slots_are_shared_between_tenants() -> None:
    scheduler = batcher(max_batch_size=2)
    for name in "abc":
        scheduler.add(step(name, start=True, tenant="one"), 0.0)
    scheduler.add(step("z", start=True, tenant="two"), 0.0)
    assert run(scheduler, 0.0) == ["a", "b"]
    scheduler.add(step("a", end=True), 0.1)
    assert run(scheduler, 0.1) == ["a"]
    assert run(scheduler, 0.1) == ["z"]


def test_nothing_is_left_when_all_sequences_have_ended() -> None:
    scheduler = batcher(max_batch_size=1)
    for name in "ab":
        scheduler.add(step(name, start=True), 0.0)
        scheduler.add(step(name, end=True), 0.0)
    while run(scheduler, 0.0):
        pass
    assert (scheduler.num_waiting, scheduler.num_sequences, scheduler.next_time) == (0, 0, None)
