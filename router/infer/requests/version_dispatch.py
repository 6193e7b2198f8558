"""The requests of one version of a model: from the scheduler's queue to an instance and back to their receivers.

    submit -> scheduler -> take -> execute -> executed / responded -> receiver
                 ^                    |
                 +---- retry ---------+ the instance is lost

It has no clock and no I/O: every call gets the time (`time.monotonic`), and `InstanceCommands` carry out its commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.router.batching.responses.response_cache import ResponseCache
from slipstream.router.batching.scheduler import BatchScheduler, RefusedRequest, RequestBatch
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.infer.requests.execution_gate import ExecutionGate
from slipstream.router.infer.requests.implicit_states import ImplicitStates
from slipstream.router.infer.requests.instance_work import InstanceWork, RunningBatch, failure_of, release_all
from slipstream.router.infer.requests.request_answers import RequestAnswers
from slipstream.router.infer.requests.request_counts import RequestCounts
from slipstream.router.infer.requests.request_record import Execution
from slipstream.router.infer.requests.statistics_recorder import ComputeTimes, StatisticsRecorder
from slipstream.router.instances.messages import Executed, ExecuteRequest, InstanceResponse
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import SequenceFlags
from slipstream.router.tensors.model_spec import ModelSpec

RETRY_PAUSE_S = 0.05  # in which all connections to a dead host are noticed, so that a retry does not meet another one


class InstanceCommands(Protocol):
    """Commands to instances, by name."""

    def execute(self, instance: str, batch: int, requests: Sequence[ExecuteRequest]) -> None: ...
    def cancel_at(self, instance: str, n: int) -> None: ...


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """`max_retries` is how often a stateless request is executed again after its instance has died. `cache` and `gate`
    are common to all models, and None where the configuration has none."""

    max_retries: int = 1
    cache: ResponseCache | None = None
    gate: ExecutionGate | None = None


class VersionDispatch:
    """Each request that `submit` takes ends once at its receiver, and gives its inputs back once."""

    def __init__(
        self,
        spec: ModelSpec,
        scheduler: BatchScheduler,
        executor: InstanceCommands,
        recorder: StatisticsRecorder,
        options: DispatchOptions,
    ) -> None:
        self._spec = spec
        self._scheduler = scheduler
        self._states = ImplicitStates.of(spec, scheduler)
        self._executor = executor
        self._counts = RequestCounts(recorder, is_decoupled=spec.is_decoupled)
        self._max_retries = options.max_retries
        self._gate = options.gate
        self._answers = RequestAnswers(spec, self._counts, options.cache)
        self._work: dict[str, InstanceWork] = {}
        self._free: dict[str, InstanceWork] = {}
        self._leaving: dict[str, InstanceWork] = {}
        self._busy_s = 0.0  # of executions that are over
        self._waiting: dict[ActiveRequest, None] = {}
        self._returning: dict[ActiveRequest, float] = {}  # of these, those whose instance was lost -> when to try again
        self._last_n = 0
        self._last_batch = 0

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def num_open(self) -> int:
        """Requests that wait or run."""
        return len(self._waiting) + sum(len(work.open) for work in self._work.values())

    def busy_s(self, now: float) -> float:
        """How long instances have executed so far, all together."""
        return self._busy_s + sum(work.running_s(now) for work in self._work.values())

    @property
    def next_time(self) -> float | None:
        """When `tick` is to be called although nothing happens."""
        next_s = self._scheduler.next_time
        if not self._returning:
            return next_s
        return_s = next(iter(self._returning.values()))
        return return_s if next_s is None else min(next_s, return_s)

    def request_of(self, name: str, n: int) -> ActiveRequest | None:
        """A request that this instance has."""
        work = self._work.get(name)
        return None if work is None else work.open.get(n)

    def submit(self, active: ActiveRequest, now: float) -> None:
        """Queues a request; `run` gives it to an instance, or the response from the cache. Raises InferError."""
        if self._answers.finds(active):
            self._answers.expect(active)
            return
        try:
            self._scheduler.add(active, now)
        except InferError as error:
            self._counts.failed(active, error, now)
            raise
        self._waiting[active] = None
        self._answers.expect(active)

    def cancel(self, active: ActiveRequest, now: float) -> None:
        if active.has_ended:
            return
        error = active.cancellation
        if self._returning.pop(active, None) is not None or self._scheduler.cancel(active, now):
            self._leave(active, error, now)
            self.run(now)  # what it has kept back may run, and an instance without work leaves the gate
            return
        work = self._work.get(active.instance)
        if work is not None and active.n in work.open:
            self._executor.cancel_at(work.name, active.n)
        self._answers.fail(active, error, now)

    def add_instance(self, name: str, now: float, key: str = "") -> None:
        """`key` is its name at the gate."""
        work = self._work[name] = self._free[name] = InstanceWork(name, key)
        self._scheduler.add_instance(work.name, now)
        self.run(now)

    def retire_instance(self, name: str, now: float) -> None:
        """It gets no more requests, but those of the sequences that it has. `emptied` names it once."""
        work = self._work.get(name)
        if work is None:
            return
        work.is_leaving = True
        self._leaving[name] = work
        self._scheduler.retire_instance(name)
        if self._gate is not None and work.running is None:
            self._gate.withdraw(work.key)
        self.run(now)

    def emptied(self) -> list[str]:
        """Instances that leave and have nothing to do any more. Each is named once."""
        if not self._leaving:
            return []
        names = [name for name, work in self._leaving.items() if not self._is_needed(work)]
        for name in names:
            del self._leaving[name]
        return names

    def _is_needed(self, work: InstanceWork) -> bool:
        return work.running is not None or bool(work.open) or self._scheduler.has_sequences(work.name)

    def remove_instance(self, name: str, error: InferError, now: float) -> None:
        """The instance is gone: what it was executing is tried again elsewhere, or fails."""
        work = self._work.pop(name, None)
        if work is None:
            return
        self._free.pop(name, None)
        self._leaving.pop(name, None)
        self._busy_s += work.running_s(now)
        if self._gate is not None:
            self._gate.leave(work.key)  # it may come back over another connection
        rejected = self._scheduler.remove_instance(name, now)
        for active in list(work.open.values()):
            self._lost(active, error, now)
        self._reject(rejected, now)
        self.run(now)

    def run(self, now: float) -> None:
        """Gives what waits to the instances that are free."""
        self._answers.send_found(now)
        for work in list(self._free.values()):
            if not self._scheduler.num_waiting:
                break
            if work.is_leaving and not self._scheduler.has_sequences(work.name):
                continue
            if self._gate is None or self._gate.acquire(work.key):
                batch = self._scheduler.take(work.name, now)
                if batch is not None:
                    self._execute(work, batch, now)
                elif self._gate is not None:
                    self._gate.release(work.key, has_executed=False)
        if self._gate is not None and not self._scheduler.num_waiting:
            for work in self._free.values():
                self._gate.withdraw(work.key)

    def tick(self, now: float) -> None:
        """Time has passed: ends what is too late, and runs what has waited for company."""
        for active in [active for active, at_s in self._returning.items() if at_s <= now]:
            del self._returning[active]
            self._scheduler.retry(active, now)
        self._reject(self._scheduler.due(now), now)
        self.run(now)

    def executed(self, name: str, result: Executed, now: float) -> None:
        work = self._work.get(name)
        if work is None or work.running is None or work.running.number != result.batch:
            release_all(result.responses)
            return
        self._busy_s += work.running_s(now)
        running, work.running = work.running, None
        self._free[name] = work
        if self._gate is not None:
            self._gate.release(work.key)
        if self._states is not None:
            self._keep_states(self._states, work, running, result)
        for n in result.rescheduled:
            self._reschedule(work, n, now)
        self._scheduler.executed(running.batch, name, now)
        times = ComputeTimes(result.input_ns, result.compute_ns, result.output_ns)
        num_rows = sum(request.batch_size for request in running.batch.requests)
        self._counts.executed(num_rows, times)
        self.run(now)  # before the responses are written out: the instance has work meanwhile
        responses = result.responses or [None] * len(running.numbers)
        for n, response in zip(running.numbers, responses, strict=False):
            self._after_execution(work, n, response, result, times, now)

    def responded(self, name: str, n: int, response: InstanceResponse | None, *, is_final: bool, now: float) -> None:
        """A response that came by a response sender."""
        work = self._work.get(name)
        active = None if work is None else work.open.get(n)
        if work is None or active is None:
            release_all((response,))
            return
        if is_final:
            del work.open[n]
        self._counts.responded(active, response, now)
        if response is not None:
            self._answers.respond(active, response, is_final=is_final, now=now)
        elif is_final:
            self._answers.complete(active, now)
        if is_final:
            active.release_inputs()

    def fail_all(self, error: InferError, now: float) -> None:
        """Ends all requests that wait: no instance will serve them."""
        self._returning.clear()
        for active in list(self._waiting):
            self._scheduler.cancel(active, now)
            self._leave(active, error, now)

    def _execute(self, work: InstanceWork, batch: RequestBatch, now: float) -> None:
        self._last_batch += 1
        del self._free[work.name]
        numbers, requests = [], []
        num_rows = sum(request.batch_size for request in batch.requests)
        execution = Execution(work.name, now, len(batch.requests), num_rows)
        states = self._states.names if self._states is not None else ()
        for item in batch.items:
            self._last_n += 1
            numbers.append(self._last_n)
            active = item.request
            if active is None:
                requests.append(ExecuteRequest(self._last_n, None, item.extra_inputs))
                continue
            assert isinstance(active, ActiveRequest)
            del self._waiting[active]
            active.n, active.instance, active.started_s = self._last_n, work.name, now
            active.attempts += 1
            active.record.executions.append(execution)
            work.open[active.n] = active
            requests.append(ExecuteRequest(active.n, active.request, item.extra_inputs, states))
        work.running = RunningBatch(self._last_batch, batch, numbers, now)
        self._executor.execute(work.name, self._last_batch, requests)

    @staticmethod
    def _keep_states(states: ImplicitStates, work: InstanceWork, running: RunningBatch, result: Executed) -> None:
        for n, response in zip(running.numbers, result.responses, strict=False):
            active = work.open.get(n)
            if active is not None and response is not None:
                states.keep(active, response)

    def _after_execution(
        self,
        work: InstanceWork,
        n: int,
        response: InstanceResponse | None,
        result: Executed,
        times: ComputeTimes,
        now: float,
    ) -> None:
        active = work.open.get(n)
        if active is None:  # a place without a request, or one that has had its last response
            release_all((response,))
            return
        active.record.compute_s = (times.input_ns / 1e9, times.infer_ns / 1e9, times.output_ns / 1e9)
        if response is not None:
            del work.open[n]
            self._answers.respond(active, response, is_final=True, now=now, times=times)
        elif result.error is not None:
            del work.open[n]
            if result.lost_file is not None and self._tries_again(active, now):
                return
            self._answers.fail(active, failure_of(work.name, result.error, result.error_code), now)
        else:
            return  # its responses come by a sender
        active.release_inputs()

    def _reschedule(self, work: InstanceWork, n: int, now: float) -> None:
        active = work.open.pop(n, None)
        if active is None:
            return
        if active.has_ended:
            active.release_inputs()
            return
        try:
            self._scheduler.reschedule(active, now)
        except InferError as error:  # its sequence has ended meanwhile
            self._leave(active, error, now)
            return
        self._waiting[active] = None

    def _lost(self, active: ActiveRequest, error: InferError, now: float) -> None:
        if active.has_ended:
            active.release_inputs()
            return
        if self._tries_again(active, now):
            return
        sequence = self._sequence_of(active)
        if sequence is not None:
            text = f"{error.message} Sequence {sequence.correlation_id} of model '{self._spec.name}' has ended with it."
            error = InferError(text, error.code, error.reason)
        self._answers.fail(active, error, now)
        active.release_inputs()

    def _tries_again(self, active: ActiveRequest, now: float) -> bool:
        """Whether the request has no state, and may be executed once more: after a pause."""
        is_stateless = self._sequence_of(active) is None
        if active.has_ended or not is_stateless or active.attempts > self._max_retries or active.num_responses:
            return False
        self._waiting[active] = None
        self._returning[active] = now + RETRY_PAUSE_S
        return True

    def _sequence_of(self, active: ActiveRequest) -> SequenceFlags | None:
        return active.request.sequence if self._spec.sequence_batching is not None else None

    def _reject(self, rejected: Sequence[RefusedRequest], now: float) -> None:
        for one in rejected:
            active = one.request
            assert isinstance(active, ActiveRequest)
            self._leave(active, one.error, now)

    def _leave(self, active: ActiveRequest, error: InferError, now: float) -> None:
        """A request leaves the queue unserved."""
        self._waiting.pop(active, None)
        self._answers.fail(active, error, now)
        active.release_inputs()
