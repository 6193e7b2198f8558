"""The loads and unloads of the models of a repository."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from slipstream.router.batching.responses.response_cache import ResponseCache
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.infer.model_versions import ModelVersions
from slipstream.router.infer.requests.statistics_recorder import StatisticsRecorder
from slipstream.router.infer.served_version import ServedVersion, VersionFactory
from slipstream.router.infer.tensor_service import TensorService
from slipstream.router.infer.version_works import can_go_on, causes_of_failures, works_of
from slipstream.router.model_repository.config.backends import LANGUAGE_BACKENDS
from slipstream.router.model_repository.known_ensembles import KnownEnsembles
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.repository_error import LoadError, RepositoryError, VersionsError, load_failure
from slipstream.router.process.gc_tuning import RareCollection
from slipstream.router.tensors.infer_error import InferError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadPass:
    """Loads that were asked for together: each model is loaded once. `ended` has what came of them, None for success.
    `changed` are models that serve other versions than before. `slots` bound how many load at a time; None: nothing
    does. Language models need none: they wait for workers, or for each other."""

    slots: asyncio.Semaphore | None = None
    ended: dict[str, InferError | RepositoryError | None] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    def slot_of(self, draft: ModelDraft) -> AbstractAsyncContextManager[None]:
        if self.slots is None or draft.backend in LANGUAGE_BACKENDS:
            return nullcontext()
        return self.slots


class ModelLoads:
    """Those of one model come one after the other; different models load side by side. `files` reads the repository.

    An ensemble is loaded after the models of its steps, and again when one of them has changed. It serves only while
    all of them do: it is unloaded before the first of them, and comes back with the last.

    `running` are versions that load, serve, or end their requests. `failures`: why the latest load of a model has
    failed, by name."""

    def __init__(
        self,
        config: RepositoryConfig,
        repository: ModelRepository,
        service: TensorService,
        new_version: VersionFactory,
        cache: ResponseCache | None,
        files: Executor,
    ) -> None:
        self._config = config
        self._repository = repository
        self._service = service
        self._new_version = new_version
        self._cache = cache
        self._files = files
        self._locks: dict[str, asyncio.Lock] = {}
        self._garbage = RareCollection()  # of versions that have ended
        self._named: set[str] = set()  # models that were loaded by their own name, not only for an ensemble
        self._with_own_config: set[str] = set()  # by the load that was asked for, not by the repository
        self._ensembles = KnownEnsembles()
        self.running: set[ServedVersion] = set()
        self.failures: dict[str, str] = {}

    async def load(self, model: str, config_json: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Raises InferError; then the versions before serve on."""
        async with self.one_pass() as loads:
            await self.load_in(loads, model, config_json, files)

    @asynccontextmanager
    async def one_pass(self, slots: asyncio.Semaphore | None = None) -> AsyncIterator[LoadPass]:
        """Loads within it count as asked for together. At its end, ensembles of models that have changed are loaded
        again."""
        loads = LoadPass(slots)
        try:
            yield loads
        finally:
            await self._renew_ensembles(loads)

    async def load_in(
        self, loads: LoadPass, model: str, config_json: str = "", files: Mapping[str, bytes] | None = None
    ) -> None:
        """Raises InferError."""
        self._named.add(model)
        if config_json:
            self._with_own_config.add(model)
        else:
            self._with_own_config.discard(model)
        try:
            await self._load(loads, model, config_json, files)
        except RepositoryError as error:
            log.error("%s", error.as_infer_error(model).message)
            raise error.as_infer_error(model) from error
        except InferError as error:
            log.error("%s", error.message)
            raise

    async def _load(
        self, loads: LoadPass, model: str, config_json: str = "", files: Mapping[str, bytes] | None = None
    ) -> None:
        """Raises RepositoryError, InferError."""
        try:
            async with self._lock(model):
                if model not in loads.ended:
                    draft = await self._read(loads, model, config_json, files)
                    await self._load_read(loads, draft)
        except (RepositoryError, InferError) as error:
            loads.ended[model] = error
            self.failures[model] = cause_of(model, error)
        failure = loads.ended[model]
        if failure is not None:
            raise failure

    async def _read(
        self, loads: LoadPass, model: str, config_json: str, files: Mapping[str, bytes] | None
    ) -> ModelDraft:
        read = partial(self._repository.read, model, config_json, files)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._files, read)
        except RepositoryError as error:
            log.error("model %r cannot be read: %s", model, error.cause)
            raise
        except LoadError as error:
            self._versions_of(model)
            raise load_failure(model, {"": error.cause}) from error

    async def _load_read(self, loads: LoadPass, draft: ModelDraft) -> None:
        if draft.step_models:
            await self._load_ensemble(loads, draft)
        else:
            self._ensembles.forget(draft.name)
            await self._load_model(loads, draft)
        loads.ended[draft.name] = None

    async def _load_model(self, loads: LoadPass, draft: ModelDraft) -> None:
        """Tries it again as often as the configuration says."""
        num_retries = 0 if draft.is_temporary else self._config.load_retries  # which its first end removes
        for num_left in reversed(range(1 + num_retries)):
            try:
                await self._load_draft(loads, draft)
                return
            except VersionsError as failed:
                failure = load_failure(draft.name, failed.causes)
                if not num_left:
                    raise failure from failed
                log.warning("%s; trying again", failure.message.rstrip())

    async def _load_ensemble(self, loads: LoadPass, draft: ModelDraft, *, with_steps: bool = True) -> None:
        """Loads the models of its steps, and checks that they fit together. Where they have changed and do not, it is
        unloaded."""
        self._ensembles.add(draft)
        try:
            if with_steps:
                await self._load_steps(loads, draft)
            await self._load_draft(loads, draft)
        except (LoadError, VersionsError) as error:
            cause = error.cause if isinstance(error, LoadError) else min(error.causes.values())
            if not loads.changed.isdisjoint(draft.step_models):
                self._unload_versions(draft.name)
            self._versions_of(draft.name).fail_load(draft.versions, dict.fromkeys(draft.versions, cause))
            raise load_failure(draft.name, {"": cause}) from error

    async def _load_steps(self, loads: LoadPass, draft: ModelDraft) -> None:
        """Raises LoadError if one of them cannot serve."""
        self._check_circle(draft.name)
        work = (self._load_step(loads, step) for step in draft.step_models)
        failures = dict(zip(draft.step_models, await asyncio.gather(*work), strict=True))
        self._check_circle(draft.name)
        missing = [step for step, failure in failures.items() if isinstance(failure, RepositoryError)]
        if missing:
            raise LoadError(
                f"ensemble {draft.name} contains models that are not available or ambiguous: {', '.join(missing)}"
            )
        for step, failure in failures.items():
            if failure is not None and not self._versions_of(step).serving:
                raise LoadError(f"ensemble '{draft.name}' depends on '{step}' {self._why_not(step, failure)}")

    async def _load_step(self, loads: LoadPass, step: str) -> InferError | RepositoryError | None:
        """Returns why it could not be loaded."""
        if step in self._with_own_config:
            async with self._lock(step):
                return loads.ended.get(step)
        try:
            await self._load(loads, step)
        except (RepositoryError, InferError) as error:
            return error
        return None

    def _why_not(self, step: str, failure: InferError | RepositoryError) -> str:
        cause = cause_of(step, failure)
        if step in self._ensembles:
            return f"which is not valid. Model '{step}' failed with error: {cause}"
        return f"which has no loaded version. Model '{step}' loading failed with error: {cause}"

    def _check_circle(self, ensemble: str) -> None:
        """Raises LoadError."""
        circle = self._ensembles.circle_of(ensemble)
        if circle:
            raise LoadError(circle)

    async def _renew_ensembles(self, loads: LoadPass) -> None:
        """Those of the models that have changed, those of these ensembles, and so on."""
        changed = list(loads.changed)
        while changed:
            for ensemble in self._ensembles.of(changed.pop()):
                try:
                    async with self._lock(ensemble):
                        if ensemble in loads.ended or ensemble not in self._ensembles:
                            continue
                        loads.ended[ensemble] = None
                        await self._load_ensemble(loads, self._ensembles.draft_of(ensemble), with_steps=False)
                except InferError as error:
                    loads.ended[ensemble] = error
                    log.warning("%s", error.message.rstrip())
                changed.append(ensemble)

    async def _load_draft(self, loads: LoadPass, draft: ModelDraft) -> None:
        """Raises VersionsError."""
        versions = self._versions_of(draft.name)
        serving = versions.serving if loads.changed.isdisjoint(draft.step_models) else {}
        kept = {version: runtime for version, runtime in serving.items() if can_go_on(draft, version, runtime)}
        versions.begin_load(draft.versions)
        begun_s = time.monotonic()
        runtimes = {version: self._new_runtime(draft, version) for version in draft.versions if version not in kept}
        self.running.update(runtimes.values())
        try:
            async with loads.slot_of(draft):
                causes = await causes_of_failures(works_of(draft, runtimes, kept))
        except asyncio.CancelledError:
            for runtime in runtimes.values():
                runtime.unload()
            versions.fail_load(runtimes, {})
            raise
        if causes:
            for version in runtimes.keys() - causes.keys():
                runtimes[version].unload()
            versions.fail_load(runtimes, causes)
            raise VersionsError(causes)
        for runtime in runtimes.values():
            runtime.recorder.load_s = time.monotonic() - begun_s
        for runtime in kept.values():
            runtime.serve_beside(draft.versions)
        leaving = versions.serve(kept | runtimes)
        self.failures.pop(draft.name, None)
        if runtimes or leaving:
            loads.changed.add(draft.name)
        for before in leaving:
            before.unload()
        self._forget_responses(draft.name, runtimes)
        if runtimes:
            log.info("model %r serves version %s", draft.name, ", ".join(runtimes))

    def _new_runtime(self, draft: ModelDraft, version: str) -> ServedVersion:
        metrics = self._config.metrics
        recorder = StatisticsRecorder(
            draft.name,
            version,
            keeps_summaries=metrics.summary_latencies,
            keeps_first_responses=metrics.histogram_latencies,
        )
        return self._new_version(draft, version, recorder, self._ended)

    def note_unloaded(self, model: str, versions: Sequence[str]) -> None:
        """A router before has unloaded these versions, as the index shows."""
        if versions:
            self._versions_of(model).note_unloaded(versions)

    async def unload(self, model: str, *, with_dependents: bool = False) -> None:
        """Returns before the requests of its versions have ended, but after those of the ensembles that they serve.
        `with_dependents`: also the models of an ensemble that nothing else needs."""
        self._named.discard(model)
        self._with_own_config.discard(model)
        draft = self._ensembles.forget(model)
        await self._take_down(model)
        if draft is not None and with_dependents:
            for step in self._ensembles.only_of(draft, self._named):
                await self.unload(step, with_dependents=True)

    async def _take_down(self, model: str) -> None:
        """Unloads a model after the ensembles that it is a step of."""
        for ensemble in self._ensembles.of(model):
            versions = self._versions_of(ensemble)
            if versions.serving:
                await self._take_down(ensemble)
            await asyncio.gather(*(runtime.wait_for_end() for runtime in versions.leaving))
        async with self._lock(model):
            self.failures.pop(model, None)
            if model in self._service.models:
                self._unload_versions(model)
                if self._versions_of(model).is_empty:
                    del self._service.models[model]

    def _unload_versions(self, model: str) -> None:
        for runtime in self._versions_of(model).unload():
            runtime.unload()

    def _forget_responses(self, model: str, versions: Iterable[str]) -> None:
        if self._cache is not None:
            for version in versions:
                self._cache.forget(model, version)

    def _ended(self, runtime: ServedVersion) -> None:
        draft = runtime.draft
        self._forget_responses(draft.name, (runtime.version,))
        self._service.models[draft.name].ended(runtime.version, runtime)
        self.running.discard(runtime)
        self._garbage.soon()
        if draft.is_temporary and all(other.draft is not draft for other in self.running):
            self._files.submit(draft.remove)

    def _versions_of(self, model: str) -> ModelVersions[ServedVersion]:
        """Those of a model that is known from now on."""
        return self._service.models.setdefault(model, ModelVersions(model))

    def _lock(self, model: str) -> asyncio.Lock:
        return self._locks.setdefault(model, asyncio.Lock())


def cause_of(model: str, failure: InferError | RepositoryError) -> str:
    """Why a load has failed."""
    return str(failure).removeprefix(f"load failed for model '{model}': ").rstrip("\n")
