"""Requests of an instance to other models: their tenant, their answers, and their end with the instance."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.router.infer.model_calls import ModelCalls
from slipstream.router.instances.messages import InstanceResponse, ModelCall
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, ResponseReceiver
from slipstream.router.tensors.model_spec import ModelSpec

SPEC = ModelSpec("callee", "1", Path("/"), "python", "", 0, (), (), b"{}")


@dataclass
class Submitted:
    receiver: ResponseReceiver
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.receiver.fail(InferError("cancelled", InferErrorCode.CANCELLED))


@dataclass
class Models:
    """CalledModels that accept every request and answer none."""

    spec: ModelSpec = SPEC
    submitted: list[Submitted] = field(default_factory=list)

    def is_ready(self, model: str, version: str = "") -> bool:
        return model == self.spec.name

    def spec_of(self, model: str, version: str = "") -> ModelSpec:
        return self.spec

    def submit(self, request: InferRequest, receiver: ResponseReceiver) -> Submitted:
        self.submitted.append(Submitted(receiver))
        return self.submitted[-1]


@dataclass
class Reply:
    answers: list[tuple[int, InstanceResponse | None, bool]] = field(default_factory=list)

    def call_response(self, call: int, response: InstanceResponse | None, *, is_final: bool) -> None:
        self.answers.append((call, response, is_final))

    @property
    def errors(self) -> list[str]:
        return [response.error.message for _, response, _ in self.answers if response and response.error]


def call_of(number: int, model: str = "callee") -> ModelCall:
    return ModelCall(number, InferRequest(model), is_decoupled=False, parent=None)


def test_the_calls_of_an_instance_that_is_gone_are_cancelled() -> None:
    models, reply = Models(), Reply()
    calls = ModelCalls(models, reply)
    calls.begin(call_of(1), None)
    calls.begin(call_of(2), None)
    calls.cancel(1)
    assert [one.is_cancelled for one in models.submitted] == [True, False]
    calls.cancel_all()
    assert [one.is_cancelled for one in models.submitted] == [True, True]
    assert len(calls) == 0
    assert [(number, is_final) for number, _, is_final in reply.answers] == [(1, True), (2, True)]


def test_a_call_is_over_with_its_last_response() -> None:
    models, reply = Models(), Reply()
    calls = ModelCalls(models, reply)
    calls.begin(call_of(1), None)
    receiver = models.submitted[0].receiver
    receiver.respond(InferResponse("callee", "1", "", []), is_final=False)
    assert len(calls) == 1
    receiver.complete()
    assert len(calls) == 0
    assert [(response is None, is_final) for _, response, is_final in reply.answers] == [(False, False), (True, True)]


def test_what_cannot_be_called_is_answered_with_the_reason() -> None:
    models, reply = Models(dataclasses.replace(SPEC, is_decoupled=True)), Reply()
    calls = ModelCalls(models, reply)
    calls.begin(call_of(1, "unknown"), None)
    calls.begin(call_of(2), None)
    assert not models.submitted
    unknown, decoupled = reply.errors
    assert unknown == (
        "Model unknown - Error when running inference: "
        "Failed for execute the inference request. Model 'unknown' is not ready."
    )
    assert decoupled.startswith("Model callee - Error when running inference: Model callee is using the decoupled.")
