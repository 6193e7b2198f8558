"""One request to an ensemble, from its first step to its end.

    begin -> step ready -> start -> responded ---> tensors -> step ready ...
                                       |
                                       +-> all outputs are there -> respond

It has no clock and no I/O: a `StepStarter` begins and cancels steps, a `RunReceiver` gets what comes of the run. Each
response of a decoupled step begins a wave: the steps behind it run once for each wave, with the tensors of that wave
only (which is what the checks at loading make sure of). Responses leave in the order of the waves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from slipstream.router.infer.ensembles.ensemble_graph import EnsembleGraph, GraphStep, RunPlan
from slipstream.router.infer.ensembles.held_tensors import (
    HeldTensor,
    SharedLease,
    sequence_parameters,
    sequence_said,
)
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import (
    InferRequest,
    InferResponse,
    ParameterValue,
    SequenceFlags,
)
from slipstream.router.tensors.tensor import Tensor

NO_SEQUENCE = SequenceFlags(0)
DEADLOCK = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"


@dataclass(slots=True, eq=False)
class EnsembleStepRun:
    """One request to the model of a step. `release` gives the inputs back; it is to be called once, when nothing reads
    them any more."""

    step: GraphStep
    wave: Wave
    inputs: list[Tensor]
    sequence: SequenceFlags
    release: Callable[[], None]
    batch_size: int  # 0: its model does not batch


@dataclass(slots=True)
class EnsembleAnswer:
    """One response of the ensemble. `release` must be called once, after the outputs were read."""

    outputs: list[Tensor]
    parameters: dict[str, ParameterValue]
    release: Callable[[], None]


@dataclass(slots=True, eq=False)
class Wave:
    """The tensors that came of one response of a decoupled step, or of the request itself."""

    tensors: dict[str, HeldTensor] = field(default_factory=dict)
    num_running: int = 0
    answer: EnsembleAnswer | None = None
    children: deque[Wave] = field(default_factory=deque)

    @property
    def is_over(self) -> bool:
        return not self.num_running and self.answer is None and not self.children

    def drop(self) -> None:
        """Gives back what nothing will read, here and in the waves that it has begun."""
        for held in self.tensors.values():
            held.lease.drop()
        self.tensors.clear()
        if self.answer is not None:
            self.answer.release()
            self.answer = None
        for child in self.children:
            child.drop()
        self.children.clear()


class StepStarter(Protocol):
    def start_step(self, run: EnsembleStepRun) -> None:
        """Submits the request of a step. `responded`, `completed` or `failed` of the run follow, not within this call.
        Raises InferError, and then has called `run.release`."""

    def cancel_step(self, run: EnsembleStepRun) -> None: ...


class RunReceiver(Protocol):
    """Hears the end of a run exactly once: a response that `is_final`, `complete`, or `fail`."""

    def respond(self, answer: EnsembleAnswer, *, is_final: bool) -> None: ...
    def complete(self) -> None: ...
    def fail(self, error: InferError) -> None: ...


class EnsembleRun:
    """`num_running` steps have not ended, also after the end of the run itself."""

    def __init__(
        self, graph: EnsembleGraph, request: InferRequest, starter: StepStarter, receiver: RunReceiver
    ) -> None:
        self._graph = graph
        self._plan: RunPlan = graph.plan(request.requested)
        self._sequence = request.sequence or NO_SEQUENCE
        self._prefix = f"[request id: {request.id or '<id_unknown>'}] "
        self._starter = starter
        self._receiver = receiver
        self._root = Wave()
        self._running: dict[EnsembleStepRun, None] = {}
        self._has_responded = False
        self._has_ended = False

    @property
    def num_running(self) -> int:
        return len(self._running)

    def begin(self, inputs: Iterable[Tensor], batch_size: int, lease: SharedLease) -> None:
        """`batch_size` 0: the ensemble does not batch. Takes over `lease`, of the memory of the inputs."""
        wave = self._root
        for tensor in inputs:
            self._put(wave, tensor.name, HeldTensor(tensor, lease, 0, batch_size))
        for name in self._graph.optional_inputs:
            if name not in wave.tensors:
                self._put(wave, name, HeldTensor(None, lease, 0))
        lease.drop()
        self._advance(wave, list(wave.tensors))

    def responded(self, run: EnsembleStepRun, response: InferResponse, *, is_final: bool) -> None:
        if is_final:
            self._step_over(run)
        lease = SharedLease(response.release)
        if self._has_ended:
            lease.drop()
        elif response.error is not None:
            lease.drop()
            self._fail(response.error)
        else:
            wave = run.wave
            if run.step.is_decoupled:
                wave = Wave()
                run.wave.children.append(wave)
            names = self._take_outputs(run, wave, response, lease)
            lease.drop()
            self._advance(wave, names)
            self.settle()

    def completed(self, run: EnsembleStepRun) -> None:
        """A step has ended without a further response."""
        self._step_over(run)
        if not self._has_ended:
            self.settle()

    def failed(self, run: EnsembleStepRun, error: InferError) -> None:
        """A step has failed, or one of the responses of a decoupled step is an error."""
        self._step_over(run)
        if not self._has_ended:
            self._fail(error)

    def settle(self) -> None:
        """Sends what may leave, and ends the run when nothing is left to run. Only a run of which `begin` has started
        no step needs this call."""
        if self._has_ended:
            return
        root = self._root
        if root.num_running and root.answer is None and not root.children:
            return  # as after each step but the last
        answers = list(leaving(root))
        is_over = not self._running
        for number, answer in enumerate(answers, 1):
            if self._has_ended:  # the receiver of the one before has cancelled the run
                answer.release()
                continue
            self._has_responded = True
            is_final = is_over and number == len(answers)
            if is_final:
                self._has_ended = True
                self._root.drop()
            self._receiver.respond(answer, is_final=is_final)
        if is_over and not self._has_ended:
            self._end_without_response()

    def cancel(self, error: InferError) -> None:
        """Its end is this error."""
        if not self._has_ended:
            self._end_all(error)

    def _take_outputs(
        self, run: EnsembleStepRun, wave: Wave, response: InferResponse, lease: SharedLease
    ) -> tuple[str, ...]:
        """Returns the tensors of the ensemble that are there now, those included that the model has left out."""
        step = run.step
        sequence = sequence_said(response.parameters, run.sequence)
        given = {output.name: output for output in response.outputs}
        for name, tensor in step.outputs.items():
            held = HeldTensor(given.get(name), lease, 0, run.batch_size, sequence, response.parameters)
            self._put(wave, tensor, held)
        return step.writes

    def _put(self, wave: Wave, name: str, held: HeldTensor) -> None:
        """Unless nothing reads it."""
        num_reads = self._plan.num_reads.get(name, 0)
        if num_reads:
            held.num_reads = num_reads
            held.lease.hold()
            wave.tensors[name] = held

    def _advance(self, wave: Wave, names: Iterable[str]) -> None:
        """Starts the steps that have all their inputs with these tensors."""
        plan, there = self._plan, wave.tensors.keys()
        ready: dict[int, GraphStep] = {}
        for name in names:
            for step in plan.readers.get(name, ()):
                if step.index not in ready and step.needs <= there:
                    ready[step.index] = step
        for step in ready.values():
            if self._has_ended:
                return
            self._start(wave, step)
        if not self._has_ended and plan.needs <= there:
            wave.answer = self._answer(wave)

    def _start(self, wave: Wave, step: GraphStep) -> None:
        inputs, leases, sequence, batch_size = [], [], self._sequence, 0
        for name, tensor_name in step.inputs:
            held = wave.tensors[tensor_name]
            tensor = held.fitted(name, step.dims[name], batches=step.batches)
            if tensor is not None:
                inputs.append(tensor)
                held.lease.hold()
                leases.append(held.lease)
                if step.batches and tensor.shape:
                    batch_size = tensor.shape[0]
            if held.sequence is not None:
                sequence = held.sequence
        run = EnsembleStepRun(step, wave, inputs, sequence, partial(drop_all, leases), batch_size)
        for tensor_name in step.reads:
            self._was_read(wave, tensor_name)
        self._running[run] = None
        wave.num_running += 1
        try:
            self._starter.start_step(run)
        except InferError as error:
            self.failed(run, error)

    def _answer(self, wave: Wave) -> EnsembleAnswer:
        outputs, leases, parameters = [], [], dict[str, ParameterValue]()
        for name in self._plan.outputs:
            held = wave.tensors[name]
            tensor = held.fitted(name, self._graph.output_dims[name], batches=self._graph.batches)
            if tensor is not None:
                outputs.append(tensor)
                held.lease.hold()
                leases.append(held.lease)
                parameters.update(held.parameters)
                parameters.update(sequence_parameters(held.sequence or self._sequence))
            self._was_read(wave, name)
        return EnsembleAnswer(outputs, parameters, partial(drop_all, leases))

    def _was_read(self, wave: Wave, name: str) -> None:
        held = wave.tensors[name]
        held.num_reads -= 1
        if not held.num_reads:
            del wave.tensors[name]
            held.lease.drop()

    def _step_over(self, run: EnsembleStepRun) -> None:
        if run in self._running:
            del self._running[run]
            run.wave.num_running -= 1

    def _end_without_response(self) -> None:
        if self._has_responded or self._graph.is_decoupled:
            self._has_ended = True
            self._root.drop()
            self._receiver.complete()
        else:
            self._fail(InferError(f"{self._prefix}{DEADLOCK}"))

    def _fail(self, error: InferError) -> None:
        """With the code of the step. Triton counts all failures of ensembles under the reason OTHER."""
        self._end_all(InferError(f"in ensemble '{self._graph.name}', {error.message}", error.code))

    def _end_all(self, error: InferError) -> None:
        """Nothing starts any more, what runs is cancelled."""
        self._has_ended = True
        self._root.drop()
        for run in list(self._running):
            self._starter.cancel_step(run)
        self._receiver.fail(error)


def leaving(wave: Wave) -> Iterator[EnsembleAnswer]:
    """The answers of a wave and of those that it has begun, up to the first that is not over."""
    answer, wave.answer = wave.answer, None
    if answer is not None:
        yield answer
    while wave.children:
        first = wave.children[0]
        yield from leaving(first)
        if not first.is_over:
            return
        first.drop()
        wave.children.popleft()


def drop_all(leases: Iterable[SharedLease]) -> None:
    for lease in leases:
        lease.drop()
