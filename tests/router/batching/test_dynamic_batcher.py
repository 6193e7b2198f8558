"""The dynamic batcher: which requests run together, and when."""

from __future__ import annotations

import pytest

from slipstream.router.batching.dynamic_batcher import DynamicBatcher
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode
from slipstream.router.tensors.model_spec import DynamicBatching, QueuePolicy, TensorSpec
from tests.support.router.batching.made_requests import ids, queued, spec_of

DELAY_US = 500_000
INSTANCE = "m_0_0"


def batcher(max_batch_size: int = 8, inputs: tuple[TensorSpec, ...] = (), **settings: object) -> DynamicBatcher:
    batching = DynamicBatching(**settings)  # type: ignore[arg-type]
    return DynamicBatcher.of(spec_of(max_batch_size=max_batch_size, inputs=inputs, dynamic_batching=batching))


def add_all(scheduler: DynamicBatcher, *rows: int, now: float = 0.0, **fields: object) -> None:
    for number, num_rows in enumerate(rows):
        scheduler.add(queued(str(number), num_rows, **fields), now)


def test_without_dynamic_batching_requests_run_one_by_one_in_order() -> None:
    scheduler = DynamicBatcher.of(spec_of(max_batch_size=8))
    add_all(scheduler, 1, 4, 1)
    assert [ids(scheduler.take(INSTANCE, 0.0)) for _ in range(4)] == [["0"], ["1"], ["2"], []]


def test_without_delay_an_instance_takes_all_that_waits() -> None:
    scheduler = batcher()
    add_all(scheduler, 1, 1, 1)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["0", "1", "2"]
    assert scheduler.num_waiting == 0


def test_three_requests_of_three_rows_make_batches_of_six_and_three() -> None:
    scheduler = batcher(max_batch_size=8)
    add_all(scheduler, 3, 3, 3)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["0", "1"]
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["2"]


def test_a_request_larger_than_a_batch_runs_alone() -> None:
    scheduler = batcher(max_batch_size=4)
    add_all(scheduler, 1, 4, 1)
    assert [ids(scheduler.take(INSTANCE, 0.0)) for _ in range(3)] == [["0"], ["1"], ["2"]]


def test_a_preferred_size_goes_at_once_and_a_smaller_one_waits_for_the_delay() -> None:
    scheduler = batcher(preferred_batch_sizes=(4,), max_queue_delay_us=DELAY_US)
    add_all(scheduler, 1, 1, 1)
    assert scheduler.take(INSTANCE, 0.1) is None
    assert scheduler.next_time == 0.5
    add_all(scheduler, 1, now=0.2)
    assert len(ids(scheduler.take(INSTANCE, 0.2))) == 4
    add_all(scheduler, 1, 1, 1, now=1.0)
    assert scheduler.take(INSTANCE, 1.4) is None
    assert not scheduler.due(1.5)
    assert len(ids(scheduler.take(INSTANCE, 1.5))) == 3


def test_a_preferred_size_is_taken_out_of_a_longer_queue() -> None:
    scheduler = batcher(preferred_batch_sizes=(4,))
    add_all(scheduler, 1, 1, 1, 1, 1, 1)
    assert len(ids(scheduler.take(INSTANCE, 0.0))) == 4
    assert len(ids(scheduler.take(INSTANCE, 0.0))) == 2


def test_of_several_preferred_sizes_the_largest_is_taken() -> None:
    scheduler = batcher(preferred_batch_sizes=(2, 4), max_queue_delay_us=DELAY_US)
    add_all(scheduler, 1, 1, 1, 1, 1)
    assert len(ids(scheduler.take(INSTANCE, 0.0))) == 4


def test_a_batch_that_can_reach_no_preferred_size_does_not_wait() -> None:
    scheduler = batcher(preferred_batch_sizes=(4,), max_queue_delay_us=DELAY_US)
    add_all(scheduler, 3, 2)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["0"]


def test_a_late_batch_takes_all_that_fits_rather_than_a_preferred_size() -> None:
    scheduler = batcher(preferred_batch_sizes=(4,), max_queue_delay_us=DELAY_US)
    add_all(scheduler, 1, 1, 1, 1, 1, 1)
    assert len(ids(scheduler.take(INSTANCE, 0.5))) == 6


def test_requests_of_different_shapes_run_apart_unless_the_input_is_ragged() -> None:
    variable = TensorSpec("X", "FP32", (-1,))
    ragged = TensorSpec("X", "FP32", (-1,), is_ragged=True)
    for inputs, expected in ((variable, ["0"]), (ragged, ["0", "1"])):
        scheduler = batcher(inputs=(inputs,))
        scheduler.add(queued("0", shapes={"X": (1, 3)}), 0.0)
        scheduler.add(queued("1", shapes={"X": (1, 4)}), 0.0)
        assert ids(scheduler.take(INSTANCE, 0.0)) == expected


def test_a_batch_does_not_wait_for_a_preferred_size_behind_another_shape() -> None:
    scheduler = batcher(inputs=(TensorSpec("X", "FP32", (-1,)),), max_queue_delay_us=DELAY_US)
    scheduler.add(queued("0", shapes={"X": (1, 3)}), 0.0)
    assert scheduler.take(INSTANCE, 0.0) is None
    scheduler.add(queued("1", shapes={"X": (1, 4)}), 0.1)
    assert ids(scheduler.take(INSTANCE, 0.1)) == ["0"]
    assert scheduler.take(INSTANCE, 0.1) is None


def test_rows_do_not_make_shapes_different() -> None:
    scheduler = batcher(inputs=(TensorSpec("X", "FP32", (-1,)),))
    scheduler.add(queued("0", 2, shapes={"X": (2, 3)}), 0.0)
    scheduler.add(queued("1", 1, shapes={"X": (1, 3)}), 0.0)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["0", "1"]


def test_requests_with_different_optional_inputs_run_apart() -> None:
    scheduler = batcher(inputs=(TensorSpec("X", "FP32", (1,)), TensorSpec("Y", "FP32", (1,), is_optional=True)))
    for name, shapes in (("0", {"X": (1, 1)}), ("1", {"X": (1, 1)}), ("2", {"X": (1, 1), "Y": (1, 1)})):
        scheduler.add(queued(name, shapes=shapes), 0.0)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["0", "1"]
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["2"]


def test_a_more_urgent_level_goes_first_and_fills_the_batch_with_the_next_one() -> None:
    scheduler = batcher(max_batch_size=3, priority_levels=2, default_priority_level=2)
    for name, priority in (("a", 0), ("b", 9), ("c", 1), ("d", 1)):
        scheduler.add(queued(name, priority=priority), 0.0)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["c", "d", "a"]
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["b"]


def test_a_full_queue_refuses_with_tritons_text() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(max_queue_size=2))
    add_all(scheduler, 1, 1)
    with pytest.raises(InferError, match="Exceeds maximum queue size") as refused:
        add_all(scheduler, 1)
    assert (refused.value.code, refused.value.reason) == (InferErrorCode.UNAVAILABLE, FailureReason.REJECTED)
    assert scheduler.num_waiting == 2


def test_the_policy_of_a_level_stands_before_the_default_one() -> None:
    scheduler = batcher(
        priority_levels=2,
        default_priority_level=1,
        default_queue_policy=QueuePolicy(max_queue_size=1),
        priority_queue_policies={2: QueuePolicy(max_queue_size=2)},
    )
    add_all(scheduler, 1, 1, priority=2)
    add_all(scheduler, 1, priority=1)
    for level in (1, 2):
        with pytest.raises(InferError):
            add_all(scheduler, 1, priority=level)


def test_a_request_that_is_too_late_is_rejected() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(default_timeout_us=100_000))
    add_all(scheduler, 1)
    assert scheduler.next_time == pytest.approx(0.1)
    assert not scheduler.due(0.09)
    (rejected,) = scheduler.due(0.1)
    assert (rejected.error.message, rejected.error.code) == ("Request timeout expired", InferErrorCode.UNAVAILABLE)
    assert scheduler.num_waiting == 0
    assert scheduler.next_time is None


def test_a_late_request_is_not_given_to_an_instance_that_comes_before_the_clock() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(default_timeout_us=100_000))
    add_all(scheduler, 1)
    assert scheduler.take(INSTANCE, 0.2) is None
    assert scheduler.next_time == 0.0
    assert [each.request.request.id for each in scheduler.due(0.2)] == ["0"]
    assert scheduler.next_time is None


def test_a_request_may_shorten_the_timeout_of_the_policy_but_not_lengthen_it() -> None:
    for timeout_us, expected_s in ((50_000, 0.05), (200_000, 0.1), (0, 0.1)):
        policy = QueuePolicy(default_timeout_us=100_000, allow_timeout_override=True)
        scheduler = batcher(default_queue_policy=policy)
        add_all(scheduler, 1, timeout_us=timeout_us)
        assert scheduler.next_time == pytest.approx(expected_s)


def test_a_timeout_of_the_request_means_nothing_without_one_of_the_policy() -> None:
    for policy in (QueuePolicy(allow_timeout_override=True), QueuePolicy(default_timeout_us=0)):
        scheduler = batcher(default_queue_policy=policy)
        add_all(scheduler, 1, timeout_us=10)
        assert scheduler.next_time is None


def test_a_delayed_request_runs_after_all_others_of_its_level() -> None:
    policy = QueuePolicy(default_timeout_us=100_000, timeout_action="DELAY")
    scheduler = batcher(max_batch_size=1, default_queue_policy=policy)
    scheduler.add(queued("late"), 0.0)
    scheduler.add(queued("fresh"), 0.2)
    assert ids(scheduler.take(INSTANCE, 0.2)) == ["fresh"]
    assert ids(scheduler.take(INSTANCE, 0.2)) == ["late"]


def test_delayed_requests_count_for_the_size_of_the_queue() -> None:
    policy = QueuePolicy(default_timeout_us=100_000, timeout_action="DELAY", max_queue_size=1)
    scheduler = batcher(default_queue_policy=policy)
    add_all(scheduler, 1)
    scheduler.due(0.2)
    with pytest.raises(InferError):
        add_all(scheduler, 1, now=0.2)


def test_a_cancelled_request_leaves_the_queue() -> None:
    scheduler = batcher()
    first, second = queued("0"), queued("1")
    scheduler.add(first, 0.0)
    scheduler.add(second, 0.0)
    assert scheduler.cancel(first, 0.0)
    assert not scheduler.cancel(first, 0.0)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["1"]
    assert not scheduler.cancel(second, 0.0)


def test_retried_requests_stand_before_all_others_of_their_level() -> None:
    scheduler = batcher(max_batch_size=2)
    add_all(scheduler, 1, 1, 1, 1)
    batch = scheduler.take(INSTANCE, 0.0)
    assert batch is not None
    assert all(scheduler.retry(request, 1.0) for request in batch.requests)
    assert ids(scheduler.take(INSTANCE, 1.0)) == ["0", "1"]
    assert ids(scheduler.take(INSTANCE, 1.0)) == ["2", "3"]


def test_a_retried_request_outlives_the_timeout_of_the_queue() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(default_timeout_us=100_000))
    add_all(scheduler, 1)
    batch = scheduler.take(INSTANCE, 0.0)
    assert batch is not None
    assert scheduler.retry(batch.requests[0], 0.2)
    assert not scheduler.due(0.3)
    assert ids(scheduler.take(INSTANCE, 0.3)) == ["0"]


def test_a_request_that_waited_alone_keeps_its_place_when_others_come() -> None:
    scheduler = batcher(max_batch_size=1)
    first, lost = queued("first"), queued("lost")
    scheduler.add(lost, 0.0)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["lost"]
    scheduler.add(first, 0.0)
    scheduler.retry(lost, 0.0)
    scheduler.add(queued("last"), 0.0)
    assert scheduler.num_waiting == 3
    assert [ids(scheduler.take(INSTANCE, 0.0)) for _ in range(3)] == [["lost"], ["first"], ["last"]]


def test_a_request_that_waits_alone_can_be_cancelled_once() -> None:
    scheduler = batcher()
    alone = queued("alone")
    scheduler.add(alone, 0.0)
    assert scheduler.cancel(alone, 0.0)
    assert not scheduler.cancel(alone, 0.0)
    assert scheduler.num_waiting == 0
    assert scheduler.take(INSTANCE, 0.0) is None


def test_a_request_that_waits_alone_counts_for_the_size_of_the_queue() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(max_queue_size=1))
    scheduler.add(queued("0"), 0.0)
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        scheduler.add(queued("1"), 0.0)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["0"]


def test_tenants_alternate_however_many_requests_one_of_them_has() -> None:
    scheduler = batcher(max_batch_size=4)
    for number in range(6):
        scheduler.add(queued(f"a{number}", tenant="a"), 0.0)
    for number in range(2):
        scheduler.add(queued(f"b{number}", tenant="b"), 0.0)
    assert sorted(ids(scheduler.take(INSTANCE, 0.0))) == ["a0", "a1", "b0", "b1"]
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["a2", "a3", "a4", "a5"]


def test_fairness_counts_rows() -> None:
    scheduler = batcher(max_batch_size=8)
    for number in range(2):
        scheduler.add(queued(f"a{number}", 4, tenant="a"), 0.0)
    for number in range(8):
        scheduler.add(queued(f"b{number}", tenant="b"), 0.0)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["a0", "b0", "b1", "b2", "b3"]


def test_a_waiting_instance_notices_that_a_cancelled_request_has_changed_the_sums() -> None:
    scheduler = batcher(preferred_batch_sizes=(3, 8), max_queue_delay_us=DELAY_US)
    first = queued("0", 2)
    scheduler.add(first, 0.0)
    scheduler.add(queued("1", 2), 0.0)
    assert scheduler.take(INSTANCE, 0.0) is None
    scheduler.cancel(first, 0.0)
    scheduler.add(queued("2", 1), 0.0)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["1", "2"]


def test_a_waiting_instance_notices_a_request_that_goes_before_the_others() -> None:
    scheduler = batcher(
        preferred_batch_sizes=(4, 8), max_queue_delay_us=DELAY_US, priority_levels=2, default_priority_level=2
    )
    scheduler.add(queued("0", 3), 0.0)
    scheduler.add(queued("1", 2), 0.0)
    assert scheduler.take(INSTANCE, 0.0) is None
    scheduler.add(queued("2", 1, priority=1), 0.0)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["2", "0"]


def test_a_waiting_instance_notices_a_request_that_comes_back() -> None:
    scheduler = batcher(preferred_batch_sizes=(1, 4, 8), max_queue_delay_us=DELAY_US)
    scheduler.add(queued("lost", 1), 0.0)
    batch = scheduler.take(INSTANCE, 0.0)
    assert batch is not None
    scheduler.add(queued("0", 3), 0.0)
    scheduler.add(queued("1", 2), 0.0)
    assert scheduler.take(INSTANCE, 0.0) is None
    scheduler.retry(batch.requests[0], 0.0)
    assert ids(scheduler.take(INSTANCE, 0.0)) == ["lost", "0"]


def test_a_tenant_does_not_fill_the_queue_against_another() -> None:
    scheduler = batcher(max_batch_size=1, default_queue_policy=QueuePolicy(max_queue_size=4))
    for number in range(4):
        scheduler.add(queued(f"a{number}", tenant="a"), 0.0)
    for number in range(2):
        scheduler.add(queued(f"b{number}", tenant="b"), 0.0)
    assert scheduler.next_time == 0.0
    rejected = scheduler.due(0.0)
    assert [each.request.request.id for each in rejected] == ["a3", "a2"]
    assert rejected[0].error.message == "Exceeds maximum queue size"
    for tenant in "ab":
        with pytest.raises(InferError, match="Exceeds maximum queue size"):
            scheduler.add(queued("more", tenant=tenant), 0.0)
    assert [ids(scheduler.take(INSTANCE, 0.0)) for _ in range(5)] == [["a0"], ["b0"], ["a1"], ["b1"], []]
