"""Tensor models without instances: what a model answers is computed in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from slipstream.router.infer.requests.request_check import RequestCheck
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, ResponseReceiver
from slipstream.router.tensors.infer_service import IndexEntry, ModelStatistics
from slipstream.router.tensors.model_spec import ModelPhase, ModelSpec, TensorSpec
from slipstream.router.tensors.tensor import Tensor

Answer = Callable[["FakeSubmission"], None]


def tensor_model(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    max_batch_size: int = 0,
    *,
    is_decoupled: bool = False,
) -> ModelSpec:
    config = {"name": name, "backend": "python", "max_batch_size": max_batch_size}
    return ModelSpec(
        name=name,
        version="1",
        folder=Path("/models") / name,
        backend="python",
        platform="python",
        max_batch_size=max_batch_size,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        config_json=orjson.dumps(config),
        versions=("1",),
        is_decoupled=is_decoupled,
    )


def vector(name: str, datatype: str = "FP32", size: int = 4) -> TensorSpec:
    return TensorSpec(name, datatype, (size,))


@dataclass(eq=False)
class FakeSubmission:
    """A request under way; its model's `Answer` calls `respond`, `complete` or `fail`, or keeps it for later."""

    service: FakeTensorService
    request: InferRequest
    receiver: ResponseReceiver
    is_cancelled: bool = False
    cancelled_because: InferError | None = None
    is_over: bool = False

    def array(self, name: str) -> np.ndarray:
        tensor = next(each for each in self.request.inputs if each.name == name)
        dtype = {"FP32": np.float32, "INT32": np.int32, "UINT8": np.uint8}[tensor.datatype]
        return np.frombuffer(tensor.view, dtype).reshape(tensor.shape)

    def response(self, outputs: Mapping[str, np.ndarray], **changes: object) -> InferResponse:
        names = {"float32": "FP32", "int32": "INT32", "uint8": "UINT8"}
        wanted = {output.name for output in self.request.requested}
        tensors = [
            Tensor(name, names[array.dtype.name], array.shape, array.tobytes())
            for name, array in outputs.items()
            if not wanted or name in wanted
        ]
        self.service.num_leased += 1
        response = InferResponse(self.request.model, "1", self.request.id, tensors, release=self.service.give_back)
        for key, value in changes.items():
            setattr(response, key, value)
        return response

    def respond(self, outputs: Mapping[str, np.ndarray], *, is_final: bool = True, **changes: object) -> None:
        self.respond_with(self.response(outputs, **changes), is_final=is_final)

    def respond_with(self, response: InferResponse, *, is_final: bool = True) -> None:
        if is_final:
            self._end()
        self.receiver.respond(response, is_final=is_final)

    def complete(self) -> None:
        self._end()
        self.receiver.complete()

    def fail(self, error: InferError) -> None:
        self._end()
        self.receiver.fail(error)

    def cancel(self, because: InferError | None = None) -> None:
        self.is_cancelled = True
        self.cancelled_because = because
        if not self.is_over:
            self.fail(because or InferError("cancelled", InferErrorCode.CANCELLED))

    def _end(self) -> None:
        assert not self.is_over, "a request ends once"
        self.is_over = True
        self.service.running.discard(self)
        if self.request.release is not None:
            self.request.release()


@dataclass
class FakeTensorService:
    """Is both `InferService` and `RepositoryControl`. `num_leased` counts responses that were not released."""

    specs: dict[str, ModelSpec] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    checks: dict[str, RequestCheck] = field(default_factory=dict)
    submitted: list[FakeSubmission] = field(default_factory=list)
    running: set[FakeSubmission] = field(default_factory=set)
    loads: list[tuple[str, str, Mapping[str, bytes] | None]] = field(default_factory=list)
    unloads: list[tuple[str, bool]] = field(default_factory=list)
    refusal: InferError | None = None  # of every request, if any
    is_ready_now: bool = True
    num_leased: int = 0

    def add(self, spec: ModelSpec, answer: Answer) -> None:
        self.specs[spec.name] = spec
        self.answers[spec.name] = answer
        self.checks[spec.name] = RequestCheck(spec)

    def give_back(self) -> None:
        self.num_leased -= 1

    def spec_of(self, model: str, version: str = "") -> ModelSpec:
        if model not in self.specs:
            raise InferError(f"Request for unknown model: '{model}' is not found", InferErrorCode.NOT_FOUND)
        if version not in ("", "1"):
            message = f"Request for unknown model: '{model}' version {version} is not found"
            raise InferError(message, InferErrorCode.NOT_FOUND)
        return self.specs[model]

    def is_ready(self, model: str, version: str = "") -> bool:
        return model in self.specs and version in ("", "1")

    def submit(self, request: InferRequest, receiver: ResponseReceiver) -> FakeSubmission:
        submission = FakeSubmission(self, request, receiver)
        try:
            if self.refusal is not None:
                raise self.refusal
            self.checks[request.model].check(request)
        except InferError:
            if request.release is not None:
                request.release()
            raise
        self.submitted.append(submission)
        self.running.add(submission)
        asyncio.get_running_loop().call_soon(self._answer, submission)
        return submission

    def _answer(self, submission: FakeSubmission) -> None:
        try:
            self.answers[submission.request.model](submission)
        except (StopIteration, ValueError) as error:  # as a model fails whose inputs it does not expect
            submission.fail(InferError(f"{error}", InferErrorCode.INTERNAL))

    def statistics(self, model: str = "", version: str = "") -> Sequence[ModelStatistics]:
        if model and model not in self.specs:
            raise InferError(f"requested model '{model}' is not available")
        names = [model] if model else sorted(self.specs)
        counts = []
        for name in names:
            statistics = ModelStatistics(name, "1", last_inference_ms=5, inference_count=3, execution_count=2)
            statistics.durations.success.add(1000)
            counts.append(statistics)
        return counts

    def is_server_ready(self) -> bool:
        return self.is_ready_now

    def index(self, *, only_ready: bool = False) -> Sequence[IndexEntry]:
        entries = [IndexEntry(name, "1", ModelPhase.READY) for name in sorted(self.specs)]
        return entries if only_ready else [*entries, IndexEntry("never_loaded")]

    async def load(self, model: str, config_json: str = "", files: Mapping[str, bytes] | None = None) -> None:
        if model == "broken":
            message = "failed to load 'broken', failed to poll from model repository"
            raise InferError(message, InferErrorCode.INTERNAL)
        self.loads.append((model, config_json, files))

    async def unload(self, model: str, *, with_dependents: bool = False) -> None:
        self.unloads.append((model, with_dependents))


def add_sub(submission: FakeSubmission) -> None:
    a, b = submission.array("A"), submission.array("B")
    submission.respond({"SUM": a + b, "DIFF": a - b})


def repeat(submission: FakeSubmission) -> None:
    """One response for each number, and then the end without one."""
    for value in submission.array("IN"):
        submission.respond({"OUT": np.array([value], np.int32)}, is_final=False)
    submission.complete()


def keep(submission: FakeSubmission) -> None:
    """No answer; the test gives it."""


def fake_models() -> FakeTensorService:
    service = FakeTensorService()
    vectors = [vector("A"), vector("B")], [vector("SUM"), vector("DIFF")]
    service.add(tensor_model("add_sub", *vectors, max_batch_size=8), add_sub)
    service.add(tensor_model("kept", *vectors, max_batch_size=8), keep)
    numbers = [vector("IN", "INT32", -1)], [vector("OUT", "INT32", 1)]
    service.add(tensor_model("repeat", *numbers, is_decoupled=True), repeat)
    service.add(tensor_model("kept_repeat", *numbers, is_decoupled=True), keep)
    return service
