"""One request to an ensemble on the event loop: its steps are requests to other models, and it is counted as their
sum."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple, Protocol

from slipstream.router.infer.ensembles.ensemble_graph import EnsembleGraph
from slipstream.router.infer.ensembles.ensemble_run import EnsembleAnswer, EnsembleRun, EnsembleStepRun
from slipstream.router.infer.ensembles.held_tensors import SharedLease
from slipstream.router.infer.ensembles.step_limits import EnsembleStepLimits
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.infer.requests.request_answers import RequestAnswers
from slipstream.router.infer.requests.request_counts import RequestCounts
from slipstream.router.infer.requests.request_record import InferRecord, StepRecord
from slipstream.router.infer.requests.statistics_recorder import ComputeTimes, nanoseconds
from slipstream.router.instances.messages import InstanceResponse
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, ResponseReceiver
from slipstream.router.tensors.model_spec import ModelSpec

MAX_STEP_RECORDS = 64  # of one request; a stream may have a step for each token
NO_TIME = (0.0, 0.0, 0.0)
NO_ID = "-"  # of a request that was submitted without one


class StepModels(Protocol):
    """What the requests of steps go to."""

    def is_ready(self, model: str, version: str = "") -> bool: ...
    def spec_of(self, model: str, version: str = "") -> ModelSpec: ...
    def submit(self, request: InferRequest, receiver: ResponseReceiver, *, is_step: bool) -> ActiveRequest: ...


class RequestOwner(Protocol):
    """The version of the ensemble."""

    @property
    def graph(self) -> EnsembleGraph: ...
    @property
    def models(self) -> StepModels: ...
    @property
    def answers(self) -> RequestAnswers: ...
    @property
    def counts(self) -> RequestCounts: ...
    @property
    def limits(self) -> EnsembleStepLimits[tuple[EnsembleRequest, EnsembleStepRun]]: ...

    def over(self, active: ActiveRequest) -> None:
        """It has ended, and no step of it runs any more."""


class EnsembleRequest:
    """StepStarter and RunReceiver of one request. A failure within `begin` is kept until `begin` has returned, because
    nothing may be answered while a request is being submitted."""

    def __init__(self, owner: RequestOwner, active: ActiveRequest) -> None:
        self._owner = owner
        self._active = active
        self._run = EnsembleRun(owner.graph, active.request, self, self)
        self._steps: dict[EnsembleStepRun, ActiveRequest] = {}
        self._times = ComputeTimes()
        self._is_beginning = False
        self._is_over = False
        self._refusal: InferError | None = None

    def begin(self) -> None:
        """Submits the first steps. Raises InferError if one was refused; then the request has ended."""
        active = self._active
        lease = SharedLease(active.release_inputs)
        self._is_beginning = True
        self._run.begin(active.request.inputs, active.batch_size if self._owner.graph.batches else 0, lease)
        self._is_beginning = False
        if self._refusal is not None:
            active.has_ended = True
            self._owner.counts.failed(active, self._refusal, time.monotonic())
            self._after_event()
            raise self._refusal
        if not self._run.num_running:  # what is asked for are inputs
            asyncio.get_running_loop().call_soon(self._settle)

    def cancel(self) -> None:
        self._run.cancel(self._active.cancellation)
        self._after_event()

    def start_step(self, run: EnsembleStepRun) -> None:
        if self._owner.limits.enters(run.step.index, (self, run)):
            try:
                self._submit(run)
            except InferError:
                self._leave(run)
                raise

    def enter_step(self, run: EnsembleStepRun) -> bool:
        """A step may run now that had to wait for others in it. Returns whether it does."""
        try:
            self._submit(run)
        except InferError as error:
            self._run.failed(run, error)
            self._after_event()
            return False
        return True

    def cancel_step(self, run: EnsembleStepRun) -> None:
        step = self._steps.get(run)
        if step is not None:
            step.cancel()
        elif self._owner.limits.withdraw(run.step.index, (self, run)):
            run.release()
            self._run.completed(run)

    def respond(self, answer: EnsembleAnswer, *, is_final: bool) -> None:
        now = time.monotonic()
        response = InstanceResponse(answer.outputs, None, answer.parameters, answer.release)
        times = self._count_executed() if is_final else None
        if self._owner.graph.is_decoupled:
            self._owner.counts.responded(self._active, response, now)
        self._owner.answers.respond(self._active, response, is_final=is_final, now=now, times=times)

    def complete(self) -> None:
        self._count_executed()
        self._owner.answers.complete(self._active, time.monotonic())

    def fail(self, error: InferError) -> None:
        if self._is_beginning:
            self._refusal = error
        else:
            self._owner.answers.fail(self._active, error, time.monotonic())

    def step_responded(self, run: EnsembleStepRun, response: InferResponse, *, is_final: bool) -> None:
        if is_final:
            self._step_over(run)
        self._run.responded(run, response, is_final=is_final)
        self._after_event()

    def step_completed(self, run: EnsembleStepRun) -> None:
        self._step_over(run)
        self._run.completed(run)
        self._after_event()

    def step_failed(self, run: EnsembleStepRun, error: InferError) -> None:
        self._step_over(run)
        self._run.failed(run, error)
        self._after_event()

    def _submit(self, run: EnsembleStepRun) -> None:
        """Raises InferError, and then the inputs have been given back."""
        parent, record, step = self._active.request, self._active.record, run.step
        is_in_sequence = parent.sequence is not None or run.sequence.correlation_id
        request = InferRequest(
            step.model,
            step.version,
            id=parent.id,
            inputs=run.inputs,
            requested=step.requested,
            parameters=dict(parent.parameters),
            sequence=run.sequence if is_in_sequence else None,
            priority=parent.priority,
            timeout_us=parent.timeout_us,
            tenant=parent.tenant,
            request_id=f"{record.request_id}.{record.num_steps + 1}",
            trace_id=parent.trace_id,
            parent_id=record.request_id or NO_ID,
            received_s=time.monotonic(),
            release=run.release,
            tokens=parent.tokens,
        )
        active = self._owner.models.submit(request, StepReceiver(self, run), is_step=True)
        self._steps[run] = active
        record.num_steps += 1
        if record.num_steps <= MAX_STEP_RECORDS:
            record.steps.append(StepRecord(active.record, step.reads, step.writes))

    def _step_over(self, run: EnsembleStepRun) -> None:
        active = self._steps.pop(run, None)
        if active is not None:
            self._add_times(active.record)
            self._leave(run)

    def _leave(self, run: EnsembleStepRun) -> None:
        """It is no longer in its step, and another one may be: the first of those that wait which is not refused."""
        has_entered = False
        while not has_entered and (following := self._owner.limits.leave(run.step.index)) is not None:
            request, waiting = following
            has_entered = request.enter_step(waiting)

    def _settle(self) -> None:
        if not self._is_over:
            self._run.settle()
            self._after_event()

    def _after_event(self) -> None:
        if not self._is_over and self._active.has_ended and not self._run.num_running:
            self._is_over = True
            self._owner.over(self._active)
            del self._run  # the circle would stay until the garbage is collected, which is rare

    def _add_times(self, step: InferRecord) -> None:
        """The times of an ensemble are those of its steps together."""
        record = self._active.record
        in_s, infer_s, out_s = compute_s_of(step)
        before = record.compute_s or NO_TIME
        record.compute_s = (before[0] + in_s, before[1] + infer_s, before[2] + out_s)
        record.queue_s += queue_s_of(step)

    def _count_executed(self) -> ComputeTimes:
        active, compute_s = self._active, self._active.record.compute_s or NO_TIME
        active.started_s = active.queued_s + active.record.queue_s
        times = ComputeTimes(*map(nanoseconds, compute_s))
        self._owner.counts.executed(active.batch_size, times)
        return times


class StepReceiver(NamedTuple):
    """ResponseReceiver of the request of one step."""

    request: EnsembleRequest
    run: EnsembleStepRun

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        self.request.step_responded(self.run, response, is_final=is_final)

    def complete(self) -> None:
        self.request.step_completed(self.run)

    def fail(self, error: InferError) -> None:
        self.request.step_failed(self.run, error)


def compute_s_of(record: InferRecord) -> tuple[float, float, float]:
    """Input, execution and output. If its responses come by a sender, it executes until its end."""
    if record.compute_s is None and record.executions and record.ended_s is not None:
        return 0.0, record.ended_s - record.executions[-1].started_s, 0.0
    return record.compute_s or NO_TIME


def queue_s_of(record: InferRecord) -> float:
    """How long it has waited, or its steps have."""
    if record.num_steps:
        return record.queue_s
    return record.executions[0].started_s - record.queued_s if record.executions else 0.0
