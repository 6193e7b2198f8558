"""The way of requests through a version: queue, instance, receiver; deaths, retries, cancellations, counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.batching.resources.rate_limiter import RateLimiter
from slipstream.router.batching.scheduler_choice import scheduler_of
from slipstream.router.infer.model_instance import unhealthy
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.infer.requests.execution_gate import ExecutionGate
from slipstream.router.infer.requests.request_record import InferRecord
from slipstream.router.infer.requests.statistics_recorder import StatisticsRecorder
from slipstream.router.infer.requests.version_dispatch import RETRY_PAUSE_S, DispatchOptions, VersionDispatch
from slipstream.router.instances.messages import Executed, ExecuteRequest, InstanceResponse
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, SequenceFlags
from slipstream.router.tensors.model_spec import (
    DynamicBatching,
    InstanceGroup,
    ModelSpec,
    RateResource,
    SequenceBatching,
    TensorSpec,
)
from slipstream.router.tensors.tensor import Tensor

IN, OUT = TensorSpec("IN", "INT32", (1,)), TensorSpec("OUT", "INT32", (1,))


def spec_of(
    *, batches: bool = True, is_decoupled: bool = False, keeps_order: bool = False, has_sequences: bool = False
) -> ModelSpec:
    return ModelSpec(
        "M",
        "1",
        Path("/"),
        "python",
        "",
        8 if batches else 0,
        (IN,),
        (OUT,),
        b"{}",
        is_decoupled=is_decoupled,
        dynamic_batching=DynamicBatching(preserve_ordering=keeps_order) if batches and not has_sequences else None,
        sequence_batching=SequenceBatching() if has_sequences else None,
    )


@dataclass
class Answer:
    """A receiver that remembers, and checks that it ends once."""

    responses: list[InferResponse] = field(default_factory=list)
    error: InferError | None = None
    num_ends: int = 0
    num_releases: int = 0

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        assert not self.num_ends
        self.responses.append(response)
        self.num_ends += is_final

    def complete(self) -> None:
        assert not self.num_ends
        self.num_ends += 1

    def fail(self, error: InferError) -> None:
        assert not self.num_ends
        self.error = error
        self.num_ends += 1

    def release(self) -> None:
        self.num_releases += 1


class World:
    """A dispatch whose instances do what the test says."""

    def __init__(self, spec: ModelSpec | None = None, options: DispatchOptions = DispatchOptions()) -> None:  # noqa: B008
        self.spec = spec or spec_of()
        self.recorder = StatisticsRecorder("M", "1")
        self.dispatch = VersionDispatch(self.spec, scheduler_of(self.spec), self, self.recorder, options)
        self.running: dict[str, tuple[int, Sequence[ExecuteRequest]]] = {}
        self.cancelled: list[tuple[str, int]] = []
        self.now = 100.0
        self.num_released = 0

    def execute(self, instance: str, batch: int, requests: Sequence[ExecuteRequest]) -> None:
        assert instance not in self.running, "one execution at a time"
        self.running[instance] = (batch, requests)

    def cancel_at(self, instance: str, n: int) -> None:
        self.cancelled.append((instance, n))

    def cancel(self, active: ActiveRequest) -> None:
        self.dispatch.cancel(active, self.now)

    def submit(
        self, name: str = "", answer: Answer | None = None, sequence: SequenceFlags | None = None
    ) -> tuple[ActiveRequest, Answer]:
        answer = answer or Answer()
        inputs = [Tensor("IN", "INT32", (1, 1), bytes(4))]
        request = InferRequest("M", id=name, inputs=inputs, sequence=sequence, release=answer.release)
        record = InferRecord(name, name, "M", "1", "", "", self.now, self.now, 1)
        active = ActiveRequest(request, receiver=answer, canceller=self, record=record)
        self.dispatch.submit(active, self.now)
        self.dispatch.run(self.now)
        return active, answer

    def response(self, error: InferError | None = None) -> InstanceResponse:
        def release() -> None:
            self.num_released += 1

        outputs = [] if error else [Tensor("OUT", "INT32", (1, 1), bytes(4))]
        return InstanceResponse(outputs, error, release=release)

    def finish(self, instance: str, error: str | None = None, lost_file: str | None = None) -> None:
        batch, requests = self.running.pop(instance)
        responses = [] if error else [self.response() for _ in requests]
        result = Executed(batch, list(responses), error, compute_ns=2_000_000, lost_file=lost_file)
        self.dispatch.executed(instance, result, self.now)

    def lose(self, instance: str) -> None:
        self.running.pop(instance, None)
        self.dispatch.remove_instance(instance, unhealthy(instance), self.now)

    def pause(self) -> None:
        """Lets the pause before a retry pass."""
        self.now += RETRY_PAUSE_S
        self.dispatch.tick(self.now)


class BrokenAnswer(Answer):
    """Cannot give a response on."""

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        raise ValueError("the output does not fit")


def test_a_response_that_cannot_be_given_on_is_the_failure_of_its_request_only() -> None:
    world = World()
    (_, broken), (_, other) = world.submit("1", BrokenAnswer()), world.submit("2")
    world.dispatch.add_instance("M_0", world.now)
    world.finish("M_0")
    assert broken.error is not None
    assert broken.error.message == "the response cannot be given on: the output does not fit"
    assert [(one.num_ends, one.num_releases) for one in (broken, other)] == [(1, 1), (1, 1)]
    assert world.dispatch.num_open == 0


def test_a_request_goes_to_a_free_instance_and_its_response_back() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    active, answer = world.submit("7")
    world.now += 0.5
    world.finish("M_0")
    assert [response.id for response in answer.responses] == ["7"]
    assert (answer.num_ends, answer.num_releases) == (1, 1)
    assert active.record.outcome == "success"
    statistics = world.recorder.statistics
    assert (statistics.inference_count, statistics.execution_count) == (1, 1)
    assert statistics.durations.success.ns == 500_000_000
    assert statistics.durations.compute_infer.ns == 2_000_000
    assert statistics.by_batch_size[1].compute_infer.count == 1
    assert world.dispatch.num_open == 0


def test_what_comes_while_all_are_busy_runs_as_one_batch() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    answers = [world.submit()[1] for _ in range(4)]
    world.finish("M_0")
    assert [answer.num_ends for answer in answers] == [1, 0, 0, 0]
    assert len(world.running["M_0"][1]) == 3
    world.finish("M_0")
    assert [answer.num_ends for answer in answers] == [1, 1, 1, 1]
    assert world.recorder.statistics.execution_count == 2


def test_an_exception_in_the_model_fails_all_requests_of_its_batch() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    _, answer = world.submit()
    world.finish("M_0", error="ValueError: no")
    assert answer.error is not None
    assert answer.error.message == "Failed to process the request(s) for model 'M_0', message: ValueError: no"
    assert answer.error.code is InferErrorCode.INTERNAL
    assert world.recorder.failures[FailureReason.BACKEND] == 1
    assert answer.num_releases == 1


def test_an_error_response_of_the_model_counts_as_success() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    _, answer = world.submit()
    batch, _ = world.running.pop("M_0")
    error = InferError("bad input", InferErrorCode.INVALID_ARG)
    world.dispatch.executed("M_0", Executed(batch, [InstanceResponse(error=error)]), world.now)
    assert answer.error is error
    assert world.recorder.statistics.durations.success.count == 1


def test_a_request_whose_instance_dies_is_tried_again_once() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    active, answer = world.submit()
    world.lose("M_0")
    assert answer.num_ends == 0
    world.dispatch.add_instance("M_0", world.now)
    assert active.attempts == 1
    assert world.dispatch.next_time == world.now + RETRY_PAUSE_S
    world.pause()
    assert active.attempts == 2
    world.lose("M_0")
    assert answer.error is not None
    assert answer.error.message == "Stub process 'M_0' is not healthy."
    assert answer.num_releases == 1


def test_a_request_whose_inputs_were_not_there_is_tried_again_once() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    active, answer = world.submit()
    world.finish("M_0", "no such file", "slipstream-1")
    assert (answer.num_ends, world.dispatch.num_open) == (0, 1)
    world.pause()
    assert active.attempts == 2
    world.finish("M_0", "no such file", "slipstream-1")
    assert (answer.num_ends, answer.num_releases, world.dispatch.num_open) == (1, 1, 0)


def test_a_request_of_a_sequence_whose_inputs_were_not_there_fails() -> None:
    world = World(spec_of(has_sequences=True))
    world.dispatch.add_instance("M_0", world.now)
    _, answer = world.submit(sequence=SequenceFlags(7, is_start=True))
    world.finish("M_0", "no such file", "slipstream-1")
    assert (answer.num_ends, answer.num_releases, world.dispatch.num_open) == (1, 1, 0)


def test_a_request_that_is_to_be_tried_again_can_be_cancelled() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    active, answer = world.submit()
    world.lose("M_0")
    active.cancel()
    assert (answer.num_ends, answer.num_releases) == (1, 1)
    assert (world.dispatch.num_open, world.dispatch.next_time) == (0, None)


def test_requests_of_a_dead_instance_keep_their_order() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    world.submit()
    for name in "abc":
        world.submit(name)
    world.finish("M_0")
    world.submit("d")
    world.lose("M_0")
    world.pause()
    world.dispatch.add_instance("M_1", world.now)
    requests = [place.request.id for place in world.running["M_1"][1] if place.request is not None]
    assert requests == ["a", "b", "c", "d"]


def test_an_instance_that_is_lost_gives_back_what_it_had_at_the_gate() -> None:
    group = InstanceGroup("g", 1, "KIND_CPU", rate_resources=(RateResource("R", 1),))
    gate = ExecutionGate(RateLimiter(), lambda retry: None)
    world = World(options=DispatchOptions(gate=gate))
    for key in ("a's", "b's"):
        gate.add(key, group, 0, lambda: None)
        world.dispatch.add_instance(key[0], world.now, key)
    world.submit()
    world.submit()
    assert list(world.running) == ["a"]  # b stands in line
    world.lose("b")
    world.lose("a")  # its connection; the process goes on
    world.dispatch.add_instance("a", world.now, "a's")
    assert list(world.running) == ["a"]


def test_a_request_that_waits_can_be_cancelled() -> None:
    world = World()
    active, answer = world.submit()
    active.cancel()
    assert answer.error is not None
    assert answer.error.code is InferErrorCode.CANCELLED
    assert answer.num_releases == 1
    assert world.recorder.failures[FailureReason.CANCELED] == 1
    world.dispatch.add_instance("M_0", world.now)
    assert not world.running


def test_a_request_that_the_server_gives_up_ends_with_its_reason() -> None:
    world = World()
    active, answer = world.submit()
    active.cancel(InferError("the client reads too slowly", InferErrorCode.UNAVAILABLE))
    assert answer.error is not None
    assert answer.error.message == "the client reads too slowly"
    assert world.recorder.failures == {FailureReason.OTHER: 1}
    assert active.record.error == "the client reads too slowly"


def test_a_running_request_that_is_cancelled_keeps_its_inputs_until_the_instance_is_done() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    active, answer = world.submit()
    active.cancel()
    assert (answer.num_ends, answer.num_releases) == (1, 0)
    assert world.cancelled == [("M_0", active.n)]
    world.finish("M_0")
    assert (answer.num_ends, answer.num_releases, world.num_released) == (1, 1, 1)


def test_a_decoupled_model_gives_many_responses_after_its_execution() -> None:
    world = World(spec_of(is_decoupled=True))
    world.dispatch.add_instance("M_0", world.now)
    active, answer = world.submit()
    batch, _ = world.running.pop("M_0")
    world.dispatch.responded("M_0", active.n, world.response(), is_final=False, now=world.now)
    world.dispatch.executed("M_0", Executed(batch, []), world.now)
    world.dispatch.responded("M_0", active.n, world.response(), is_final=False, now=world.now)
    assert (len(answer.responses), answer.num_ends, answer.num_releases) == (2, 0, 0)
    world.dispatch.responded("M_0", active.n, None, is_final=True, now=world.now)
    assert (answer.num_ends, answer.num_releases) == (1, 1)
    assert world.recorder.statistics.responses["0"].success.count == 1
    assert world.recorder.statistics.responses["2"].empty_response.count == 1
    assert world.recorder.statistics.durations.success.count == 1


def test_a_decoupled_request_that_has_responses_is_not_tried_again() -> None:
    world = World(spec_of(is_decoupled=True))
    world.dispatch.add_instance("M_0", world.now)
    active, answer = world.submit()
    world.dispatch.responded("M_0", active.n, world.response(), is_final=False, now=world.now)
    world.lose("M_0")
    assert answer.error is not None


def test_all_that_waits_fails_when_no_instance_will_come() -> None:
    world = World()
    answers = [world.submit()[1] for _ in range(3)]
    world.dispatch.fail_all(unhealthy("M_0"), world.now)
    assert [answer.num_ends for answer in answers] == [1, 1, 1]
    assert world.dispatch.num_open == 0


def test_a_request_that_is_to_be_tried_again_fails_with_all_that_wait() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    _, answer = world.submit()
    world.lose("M_0")
    world.dispatch.fail_all(unhealthy("M_0"), world.now)
    assert (answer.num_ends, answer.num_releases) == (1, 1)
    assert (world.dispatch.num_open, world.dispatch.next_time) == (0, None)
    world.dispatch.add_instance("M_1", world.now)
    world.pause()
    assert not world.running


def test_what_waits_of_a_sequence_fails_with_the_instance_that_has_it() -> None:
    world = World(spec_of(has_sequences=True))
    world.dispatch.add_instance("M_0", world.now)
    _, runs = world.submit("a", sequence=SequenceFlags(1, is_start=True))
    _, waits = world.submit("b", sequence=SequenceFlags(1))
    world.lose("M_0")
    assert [(answer.num_ends, answer.num_releases) for answer in (runs, waits)] == [(1, 1), (1, 1)]
    assert world.dispatch.num_open == 0
    assert runs.error is not None
    assert runs.error.message.endswith("Sequence 1 of model 'M' has ended with it.")


def test_a_request_that_was_cancelled_is_not_executed_again_when_its_model_reschedules_it() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    active, answer = world.submit()
    active.cancel()
    batch, _ = world.running.pop("M_0")
    world.dispatch.executed("M_0", Executed(batch, [None], rescheduled=[active.n]), world.now)
    assert (answer.num_ends, answer.num_releases) == (1, 1)
    assert world.dispatch.num_open == 0
    assert not world.running


def test_responses_leave_in_the_order_of_their_requests() -> None:
    world = World(spec_of(keeps_order=True))
    for name in ("M_0", "M_1", "M_2"):
        world.dispatch.add_instance(name, world.now)
    answers = [world.submit()[1] for _ in range(3)]
    world.finish("M_2")
    world.finish("M_1")
    assert [answer.num_ends for answer in answers] == [0, 0, 0]
    world.finish("M_0")
    assert [answer.num_ends for answer in answers] == [1, 1, 1]


def test_a_failure_makes_way_for_the_responses_behind_it() -> None:
    world = World(spec_of(keeps_order=True))
    for name in ("M_0", "M_1"):
        world.dispatch.add_instance(name, world.now)
    first, second = world.submit(), world.submit()
    world.finish("M_1")
    first[0].cancel()
    assert (first[1].num_ends, second[1].num_ends) == (1, 1)
    world.finish("M_0")
    assert world.num_released == 1  # the response that the cancelled request does not want


def test_a_held_response_is_given_back_if_its_request_is_cancelled() -> None:
    world = World(spec_of(keeps_order=True))
    for name in ("M_0", "M_1"):
        world.dispatch.add_instance(name, world.now)
    first, second = world.submit(), world.submit()
    world.finish("M_1")
    second[0].cancel()
    assert (second[1].num_ends, world.num_released) == (1, 1)
    world.finish("M_0")
    assert (first[1].num_ends, first[1].num_releases, second[1].num_releases) == (1, 1, 1)


@pytest.mark.parametrize("keeps_order", [False, True])
@pytest.mark.parametrize("is_decoupled", [False, True])
@settings(max_examples=100, deadline=None)
@given(events=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)), max_size=60))
def test_whatever_happens_every_request_ends_once_and_gives_its_memory_back(
    is_decoupled: bool, keeps_order: bool, events: list[tuple[int, int]]
) -> None:
    world = World(spec_of(is_decoupled=is_decoupled, keeps_order=keeps_order))
    names = ("M_0", "M_1")
    alive: set[str] = set()
    requests: list[tuple[ActiveRequest, Answer]] = []
    num_responses = 0

    def respond(active: ActiveRequest, *, is_final: bool) -> None:
        nonlocal num_responses
        num_responses += 1
        world.dispatch.responded(active.instance, active.n, world.response(), is_final=is_final, now=world.now)

    def finish(name: str) -> None:
        nonlocal num_responses
        batch, places = world.running.pop(name)
        responses = [] if is_decoupled else [world.response() for _ in places]
        num_responses += len(responses)
        world.dispatch.executed(name, Executed(batch, list(responses)), world.now)

    for kind, index in events:
        world.now += 0.01
        name = names[index % 2]
        if kind <= 1:
            requests.append(world.submit())
        elif kind == 2 and name not in alive:
            alive.add(name)
            world.dispatch.add_instance(name, world.now)
        elif kind == 3 and name in alive:
            alive.discard(name)
            world.lose(name)
        elif kind == 4 and name in world.running:
            finish(name)
        elif kind == 4:
            world.pause()
        elif requests:
            active = requests[index % len(requests)][0]
            if kind == 5:
                active.cancel()
            elif active.n and is_decoupled:
                respond(active, is_final=kind == 7)
    for name in alive:
        world.lose(name)
    world.dispatch.fail_all(unhealthy("M"), world.now)
    assert all((answer.num_ends, answer.num_releases) == (1, 1) for _, answer in requests)
    assert world.dispatch.num_open == 0
    passed_on = sum(len(answer.responses) for _, answer in requests)
    assert world.num_released + passed_on == num_responses


def test_an_instance_that_leaves_ends_what_it_has_and_gets_nothing_more() -> None:
    world = World(spec_of(batches=False))
    for name in ("M_0", "M_1"):
        world.dispatch.add_instance(name, world.now)
    answers = [world.submit()[1] for _ in range(3)]
    world.dispatch.retire_instance("M_1", world.now)
    assert world.dispatch.emptied() == []
    world.finish("M_1")
    assert world.dispatch.emptied() == ["M_1"]
    assert world.dispatch.emptied() == []  # it is named once
    assert list(world.running) == ["M_0"]
    world.finish("M_0")
    world.finish("M_0")
    assert [answer.num_ends for answer in answers] == [1, 1, 1]


def test_an_instance_that_leaves_serves_its_sequences_to_their_ends_but_no_new_one() -> None:
    world = World(spec_of(has_sequences=True, batches=False))
    for name in ("M_0", "M_1"):
        world.dispatch.add_instance(name, world.now)
    for name in (1, 2):
        world.submit(sequence=SequenceFlags(name, is_start=True))
    for name in ("M_0", "M_1"):
        world.finish(name)
    world.dispatch.retire_instance("M_1", world.now)
    assert world.dispatch.emptied() == []
    _, third = world.submit(sequence=SequenceFlags(3, is_start=True, is_end=True))
    world.submit(sequence=SequenceFlags(2, is_end=True))
    assert list(world.running) == ["M_1"]
    world.finish("M_1")
    assert world.dispatch.emptied() == ["M_1"]
    assert not world.running
    world.submit(sequence=SequenceFlags(1, is_end=True))
    world.finish("M_0")
    world.finish("M_0")
    assert third.num_ends == 1


def test_the_time_that_instances_execute_is_counted_also_while_they_do() -> None:
    world = World()
    world.dispatch.add_instance("M_0", world.now)
    world.submit()
    world.now += 2.0
    assert world.dispatch.busy_s(world.now) == 2.0
    world.finish("M_0")
    world.submit()
    world.now += 1.0
    world.lose("M_0")
    assert world.dispatch.busy_s(world.now + 5.0) == 3.0
