"""Serves tensor requests: finds the model, checks the request, and gives it to the version that serves it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from slipstream.router.infer.model_versions import ModelVersions, unknown, version_of
from slipstream.router.infer.requests.active_request import ActiveRequest, release_inputs
from slipstream.router.infer.requests.request_record import InferHistory, InferRecord, RequestTraces
from slipstream.router.infer.served_version import ServedVersion
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, ResponseReceiver
from slipstream.router.tensors.infer_service import ModelStatistics
from slipstream.router.tensors.model_spec import ModelSpec

NUM_RECORDS = 4096
STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


class TensorService:
    """InferService. `models` are those that were ever loaded; the repository's control changes them. `traces` None: no
    request is traced."""

    def __init__(self) -> None:
        self.models: dict[str, ModelVersions[ServedVersion]] = {}
        self.history = InferHistory(NUM_RECORDS)
        self.traces: RequestTraces | None = None
        self._is_stopping = False

    def stop_admission(self) -> None:
        """Refuses requests from now on, except those that models make to serve others."""
        self._is_stopping = True

    def spec_of(self, model: str, version: str = "") -> ModelSpec:
        return self._find(model, version).spec

    def is_ready(self, model: str, version: str = "") -> bool:
        version = version_of(version)
        try:
            return not self._find(model, version).is_down
        except InferError:
            return False

    def submit(self, request: InferRequest, receiver: ResponseReceiver) -> ActiveRequest:
        try:
            if self._is_stopping and not request.parent_id:
                raise InferError(STOPPING, InferErrorCode.UNAVAILABLE)
            runtime = self._find(request.model, request.model_version)
            batch_size = runtime.check.check(request)
            active = self._activate(request, receiver, runtime, batch_size)
            runtime.submit(active)
        except InferError:
            release_inputs(request)
            raise
        return active

    def statistics(self, model: str = "", version: str = "") -> Sequence[ModelStatistics]:
        wanted = version_of(version)
        if model and not self.models.get(model, NONE_SERVES).serving:
            raise InferError(f"requested model '{model}' is not available")
        runtimes = [runtime for name, runtime in self.runtimes() if model in ("", name)]
        if wanted:
            runtimes = [runtime for runtime in runtimes if runtime.version == wanted]
            if not runtimes:
                raise InferError(f"requested model version is not available for model '{model}'")
        return [runtime.recorder.statistics for runtime in runtimes]

    def runtimes(self) -> Iterator[tuple[str, ServedVersion]]:
        """All versions that serve, with the names of their models."""
        for name in sorted(self.models):
            serving = self.models[name].serving
            for version in sorted(serving, key=int):
                yield name, serving[version]

    def _find(self, model: str, version: str) -> ServedVersion:
        versions = self.models.get(model)
        wanted = version_of(version) if version else version
        if versions is None:
            raise unknown(f"'{model}' is not found")
        return versions.find(wanted)

    def _activate(
        self, request: InferRequest, receiver: ResponseReceiver, runtime: ServedVersion, batch_size: int
    ) -> ActiveRequest:
        now = time.monotonic()
        record = InferRecord(
            request_id=request.request_id or request.id,
            client_id=request.id,
            model=request.model,
            version=runtime.version,
            tenant=request.tenant,
            parent_id=request.parent_id,
            received_s=request.received_s or now,
            queued_s=now,
            batch_size=batch_size,
        )
        self.history.add(record)
        if self.traces is not None and self.traces.takes(request.model):
            record.on_end = self.traces.write
        return ActiveRequest(request, batch_size, receiver=receiver, canceller=runtime.canceller, record=record)


NONE_SERVES: ModelVersions[ServedVersion] = ModelVersions("")
