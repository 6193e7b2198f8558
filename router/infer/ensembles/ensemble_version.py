"""One load of one version of an ensemble. It has no instances: its requests become requests to the models of its
steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slipstream.router.batching.responses.response_cache import ResponseCache
from slipstream.router.infer.ensembles.ensemble_graph import EnsembleGraph
from slipstream.router.infer.ensembles.ensemble_request import EnsembleRequest, StepModels
from slipstream.router.infer.ensembles.ensemble_run import EnsembleStepRun
from slipstream.router.infer.ensembles.step_limits import EnsembleStepLimits
from slipstream.router.infer.requests.active_request import ActiveRequest, Canceller
from slipstream.router.infer.requests.request_answers import RequestAnswers
from slipstream.router.infer.requests.request_check import RequestCheck
from slipstream.router.infer.requests.request_counts import RequestCounts
from slipstream.router.infer.requests.statistics_recorder import StatisticsRecorder
from slipstream.router.infer.served_version import ServedVersion
from slipstream.router.model_repository.graph_checks import checked_graph
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.tensors.custom_metrics import CustomFamily
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.model_spec import ModelSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class EnsembleContext:
    """What all ensembles have in common."""

    models: StepModels
    cache: ResponseCache | None = None


class EnsembleVersion:
    """ServedVersion. The models of its steps are loaded before it: `load` only checks that they fit together."""

    custom_families: Sequence[CustomFamily] = ()
    num_waiting = 0  # what waits is counted by the models of the steps

    def __init__(
        self,
        context: EnsembleContext,
        draft: ModelDraft,
        version: str,
        recorder: StatisticsRecorder,
        on_end: Callable[[ServedVersion], None],
    ) -> None:
        self.draft = draft
        self.version = version
        self.recorder = recorder
        self.models = context.models
        self._cache = context.cache
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._open: dict[ActiveRequest, EnsembleRequest] = {}
        self._is_unloading = False
        self._has_ended = asyncio.Event()
        self.spec: ModelSpec  # these are there once it is loaded
        self.check: RequestCheck
        self.graph: EnsembleGraph
        self.counts: RequestCounts
        self.answers: RequestAnswers
        self.limits: EnsembleStepLimits[tuple[EnsembleRequest, EnsembleStepRun]]

    @property
    def is_down(self) -> bool:
        return not all(self.models.is_ready(step.model, step.version) for step in self.graph.steps)

    @property
    def canceller(self) -> Canceller:
        return self

    @property
    def instances(self) -> None:
        return None

    async def load(self) -> None:
        try:
            spec = await asyncio.to_thread(self.draft.complete, self.version)
            models = [self._model(spec, step.model, step.model_version) for step in spec.steps]
            if checked_graph(spec, models):
                decoupled = {**self.draft.config_to_complete(), "model_transaction_policy": {"decoupled": True}}
                spec = await asyncio.to_thread(self.draft.complete, self.version, decoupled)
            spec = replace(spec, outputs=labelled(spec, models))
        except LoadError:
            self._end()
            raise
        self.spec, self.check = spec, RequestCheck(spec)
        self.graph = EnsembleGraph(spec, models)
        self.counts = RequestCounts(self.recorder, is_decoupled=spec.is_decoupled)
        self.limits = EnsembleStepLimits(spec.max_step_requests)
        self.answers = RequestAnswers(spec, self.counts, self._cache)

    def submit(self, active: ActiveRequest) -> None:
        """Starts the first steps, or finds the response in the cache. Raises InferError."""
        active.queued_s = time.monotonic()
        if self._is_unloading:
            message = f"Request for unknown model: '{self.draft.name}' version {self.version} is not at ready state"
            error = InferError(message, InferErrorCode.UNAVAILABLE)
            active.record.ended(active.queued_s, "rejected", error)
            raise error
        self.answers.expect(active)
        if self.answers.finds(active):
            self._loop.call_soon(self._send_found)
            return
        request = self._open[active] = EnsembleRequest(self, active)
        request.begin()

    def cancel(self, active: ActiveRequest) -> None:
        request = self._open.get(active)
        if request is not None:
            request.cancel()

    def over(self, active: ActiveRequest) -> None:
        """RequestOwner."""
        self._open.pop(active, None)
        if self._is_unloading and not self._open:
            self._end()

    def unload(self) -> None:
        self._is_unloading = True
        if not self._open:
            self._end()

    def serve_beside(self, versions: tuple[str, ...]) -> None:
        self.spec = replace(self.spec, versions=versions)

    async def wait_for_end(self) -> None:
        await self._has_ended.wait()

    def _send_found(self) -> None:
        self.answers.send_found(time.monotonic())

    def _model(self, spec: ModelSpec, model: str, version: str) -> ModelSpec:
        """Raises LoadError."""
        try:
            return self.models.spec_of(model, version)
        except InferError:
            pass
        lacks = f"whose required version {version} is not loaded." if version else "which has no loaded version."
        raise LoadError(f"ensemble '{spec.name}' depends on '{model}' {lacks}")

    def _end(self) -> None:
        if not self._has_ended.is_set():
            self._has_ended.set()
            self._on_end(self)


def labelled(spec: ModelSpec, models: Sequence[ModelSpec]) -> tuple[TensorSpec, ...]:
    """The outputs of an ensemble, with the labels of the models that give them where it has none of its own."""
    labels = {
        tensor: next((output.labels for output in model.outputs if output.name == name), ())
        for step, model in zip(spec.steps, models, strict=True)
        for name, tensor in step.outputs.items()
    }
    return tuple(replace(output, labels=output.labels or labels.get(output.name, ())) for output in spec.outputs)
