"""Runs of ensembles without models: tests say what the steps answer, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from slipstream.router.infer.ensembles.ensemble_graph import EnsembleGraph
from slipstream.router.infer.ensembles.ensemble_run import EnsembleAnswer, EnsembleRun, EnsembleStepRun
from slipstream.router.infer.ensembles.held_tensors import SharedLease
from slipstream.router.model_repository.graph_checks import checked_graph
from slipstream.router.tensors.infer_error import InferError, cancelled_by_client
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, ParameterValue
from slipstream.router.tensors.model_spec import EnsembleStep, ModelSpec, TensorSpec
from slipstream.router.tensors.tensor import Tensor


def model(
    name: str,
    inputs: str = "IN",
    outputs: str = "OUT",
    *,
    optional: str = "",
    dims: tuple[int, ...] = (-1,),
    max_batch_size: int = 0,
    is_decoupled: bool = False,
    steps: tuple[EnsembleStep, ...] = (),
    datatype: str = "INT32",
) -> ModelSpec:
    """A model of integers. `inputs`, `outputs` and `optional` inputs are names with spaces between them."""
    given = [TensorSpec(one, datatype, dims) for one in inputs.split()]
    given += [TensorSpec(one, datatype, dims, is_optional=True) for one in optional.split()]
    return ModelSpec(
        name=name,
        version="1",
        folder=Path(),
        backend="" if steps else "python",
        platform="ensemble" if steps else "python",
        max_batch_size=max_batch_size,
        inputs=tuple(given),
        outputs=tuple(TensorSpec(one, datatype, dims) for one in outputs.split()),
        config_json=b"{}",
        is_decoupled=is_decoupled,
        steps=steps,
    )


def step(name: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> EnsembleStep:
    return EnsembleStep(name, "", inputs, outputs)


def number(name: str, value: int) -> Tensor:
    return Tensor(name, "INT32", (1,), np.asarray([value], np.int32).tobytes())


def value_of(tensor: Tensor) -> int:
    return int(np.frombuffer(tensor.view, np.int32)[0])


@dataclass
class RunLab:
    """StepStarter and RunReceiver of one run of an ensemble `E`. `started` are its steps so far, `responses` and `end`
    what its client hears. `num_held` leases have not been given back."""

    spec: ModelSpec
    models: Mapping[str, ModelSpec]
    started: list[EnsembleStepRun] = field(default_factory=list)
    cancelled: list[EnsembleStepRun] = field(default_factory=list)
    responses: list[dict[str, int]] = field(default_factory=list)
    parameters: list[dict[str, ParameterValue]] = field(default_factory=list)
    end: str = ""
    error: InferError | None = None
    refusals: dict[str, InferError] = field(default_factory=dict)  # of the models that refuse requests
    num_held: int = 0
    cancels_at_response: bool = False

    def begin(self, request: InferRequest | None = None, **inputs: int) -> RunLab:
        models = [self.models[one.model] for one in self.spec.steps]
        if checked_graph(self.spec, models):
            self.spec = replace(self.spec, is_decoupled=True)
        graph = EnsembleGraph(self.spec, models)
        request = request or InferRequest("E", id="R")
        self.run = EnsembleRun(graph, request, self, self)
        self.run.begin([number(name, value) for name, value in inputs.items()], 0, SharedLease(self.held()))
        return self

    def held(self) -> ReleaseOnce:
        self.num_held += 1
        return ReleaseOnce(self)

    def running(self, name: str) -> EnsembleStepRun:
        """The first step of this model that was not answered."""
        return next(run for run in self.started if run.step.model == name)

    def inputs_of(self, name: str) -> dict[str, int]:
        return {tensor.name: value_of(tensor) for tensor in self.running(name).inputs}

    def answer(
        self, name: str, *, is_final: bool = True, parameters: dict[str, ParameterValue] | None = None, **outputs: int
    ) -> None:
        """A response of the first step of this model that runs."""
        run = self.running(name)
        tensors = [number(output, value) for output, value in outputs.items()]
        response = InferResponse(name, "1", "", tensors, parameters or {}, self.held())
        if is_final:
            self.over(run)
        self.run.responded(run, response, is_final=is_final)

    def complete_step(self, name: str) -> None:
        run = self.running(name)
        self.over(run)
        self.run.completed(run)

    def fail_step(self, name: str, error: InferError) -> None:
        run = self.running(name)
        self.over(run)
        self.run.failed(run, error)

    def over(self, run: EnsembleStepRun) -> None:
        self.started.remove(run)
        run.release()

    def start_step(self, run: EnsembleStepRun) -> None:
        if run.step.model in self.refusals:
            run.release()
            raise self.refusals[run.step.model]
        self.started.append(run)

    def cancel_step(self, run: EnsembleStepRun) -> None:
        self.cancelled.append(run)

    def respond(self, answer: EnsembleAnswer, *, is_final: bool) -> None:
        assert not self.end
        self.responses.append({tensor.name: value_of(tensor) for tensor in answer.outputs})
        self.parameters.append(answer.parameters)
        answer.release()
        self.end = "response" if is_final else ""
        if self.cancels_at_response:
            self.run.cancel(cancelled_by_client())

    def complete(self) -> None:
        assert not self.end
        self.end = "complete"

    def fail(self, error: InferError) -> None:
        assert not self.end
        self.end, self.error = "failure", error


@dataclass
class ReleaseOnce:
    """Gives one lease of a lab back."""

    lab: RunLab
    is_released: bool = False

    def __call__(self) -> None:
        assert not self.is_released
        self.is_released = True
        self.lab.num_held -= 1


def lab_of(ensemble: ModelSpec, *models: ModelSpec) -> RunLab:
    return RunLab(ensemble, {one.name: one for one in models})
