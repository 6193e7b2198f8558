"""Serves tensor requests: finds the model, checks the request, and gives it to the version that serves it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.infer.model_versions import ModelVersions, unknown, version_of
from slipstream.router.infer.requests.active_request import ActiveRequest, release_inputs
from slipstream.router.infer.requests.request_record import InferHistory, InferRecord, RequestTraces
from slipstream.router.infer.routing.model_routes import ModelRoutes, VersionRoutes
from slipstream.router.infer.routing.request_mirror import CopyReceiver, MirrorPair, OriginalReceiver
from slipstream.router.infer.served_version import ServedVersion
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus, TensorVersionStatus
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, ResponseReceiver
from slipstream.router.tensors.infer_service import ModelStatistics
from slipstream.router.tensors.model_spec import ModelSpec

NUM_RECORDS = 4096
STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


class TensorService:
    """InferService. `models` are those that were ever loaded; the repository's control changes them. `versions` say how
    the requests to a model are divided between its versions, where that is not the highest. `traces` None: no request
    is traced."""

    def __init__(self, versions: Mapping[str, TensorVersionsConfig] | None = None) -> None:
        self.routes = ModelRoutes(versions or {})
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

    def submit(self, request: InferRequest, receiver: ResponseReceiver, *, is_step: bool = False) -> ActiveRequest:
        """InferService.submit. `is_step`: it is shown with its ensemble, so it is not in the history itself."""
        try:
            if self._is_stopping and not request.parent_id:
                raise InferError(STOPPING, InferErrorCode.UNAVAILABLE)
            routes = self.routes.of(request.model)
            runtime, reason = self._route(request, routes)
            batch_size = runtime.check.check(request)
            pair = None if routes is None else self._pair(request, receiver, routes)
            taken_by = receiver if pair is None else OriginalReceiver(pair)
            active = self._activate(request, taken_by, runtime, batch_size)
            active.record.version_reason = reason
            if not is_step:
                self.history.add(active.record)
            runtime.submit(active)
        except BaseException:
            release_inputs(request)
            raise
        if pair is not None:
            self._submit_copy(request, pair)
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

    def _route(self, request: InferRequest, routes: VersionRoutes | None) -> tuple[ServedVersion, str]:
        """The version that serves a request, and why that one, if there was a choice. Raises InferError."""
        model, versions = request.model, self.models.get(request.model)
        if routes is None or versions is None or version_of(request.model_version):
            return self._find(model, request.model_version), ""
        chosen = routes.choose(request, versions.serving)
        return self._find(model, chosen.version), chosen.reason

    def _pair(self, request: InferRequest, receiver: ResponseReceiver, routes: VersionRoutes) -> MirrorPair | None:
        """Of a request that is to be copied."""
        mirror = routes.mirror
        if mirror is None or version_of(request.model_version):
            return None
        copied_to = self.models[request.model].serving.get(mirror.version)
        has_taken = copied_to is not None and mirror.takes(request, copied_to.num_waiting)
        return mirror.pair(receiver) if has_taken else None

    def _submit_copy(self, request: InferRequest, pair: MirrorPair) -> None:
        """The inputs are still there: what has taken the original gives nothing back before this returns."""
        copy = pair.mirror.copy_of(request)
        try:
            runtime = self._find(copy.model, copy.model_version)
            active = self._activate(copy, CopyReceiver(pair), runtime, runtime.check.check(copy))
            active.record.version_reason = f"a copy of {request.request_id or 'a request'}"
            self.history.add(active.record)
            runtime.submit(active)
        except InferError:
            release_inputs(copy)
            pair.mirror.refused()

    def set_versions(self, model: str, config: TensorVersionsConfig) -> None:
        """How the requests to a model are divided between its versions from now on."""
        self.routes.set(model, config)

    def versions_status(self, model: str) -> TensorVersionsStatus | None:
        """How the versions of a model do; None if it was never loaded."""
        versions, routes = self.models.get(model), self.routes.of(model)
        if versions is None:
            return None
        serving = versions.serving
        highest = max(serving, key=int, default="")
        shares = {highest: 1.0} if routes is None else routes.shares(serving)
        status = [
            version_status(version, shares.get(version, 0.0), serving[version]) for version in sorted(serving, key=int)
        ]
        return TensorVersionsStatus(
            tuple(status), None if routes is None or not routes.mirror else routes.mirror.counts
        )

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
        if self.traces is not None and self.traces.takes(request.model):
            record.on_end = self.traces.write
        return ActiveRequest(request, batch_size, receiver=receiver, canceller=runtime.canceller, record=record)


def version_status(version: str, share: float, runtime: ServedVersion) -> TensorVersionStatus:
    durations = runtime.recorder.statistics.durations
    success = durations.success
    times = replace(runtime.recorder.times)  # as they are now
    return TensorVersionStatus(version, share, success.count, durations.fail.count, success.ns / 1e9, times)


NONE_SERVES: ModelVersions[ServedVersion] = ModelVersions("")
