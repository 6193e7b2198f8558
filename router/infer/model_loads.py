"""The loads and unloads of the models of a repository."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from functools import partial

from slipstream.router.batching.responses.response_cache import ResponseCache
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.infer.model_versions import ModelVersions
from slipstream.router.infer.requests.statistics_recorder import StatisticsRecorder
from slipstream.router.infer.served_version import ServedVersion, VersionFactory
from slipstream.router.infer.tensor_service import TensorService
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.repository_error import LoadError, RepositoryError, load_failure
from slipstream.router.process.gc_tuning import RareCollection
from slipstream.router.tensors.infer_error import InferError

log = logging.getLogger(__name__)


class ModelLoads:
    """Those of one model come one after the other; different models load side by side. `files` reads the repository.

    `running` are versions that load, serve, or end their requests. `unreadable`: why models could not be read when they
    were to be loaded last, by name."""

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
        self.num_loading = 0
        self.running: set[ServedVersion] = set()
        self.unreadable: dict[str, str] = {}

    async def load(self, model: str, config_json: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Raises InferError; then the versions before serve on."""
        self.num_loading += 1
        try:
            async with self._lock(model):
                await self._load_locked(model, config_json, files)
        except InferError as error:
            log.error("%s", error.message)
            raise
        finally:
            self.num_loading -= 1

    async def _load_locked(self, model: str, config_json: str, files: Mapping[str, bytes] | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            read = partial(self._repository.read, model, config_json, files)
            self.unreadable.pop(model, None)
            draft = await loop.run_in_executor(self._files, read)
        except RepositoryError as error:
            log.error("model %r cannot be read: %s", model, error.cause)
            self.unreadable[model] = error.cause
            raise error.as_infer_error(model) from error
        except LoadError as error:
            self._versions_of(model)
            raise load_failure(model, {"": error.cause}) from error
        num_retries = 0 if draft.is_temporary else self._config.load_retries  # which its first end removes
        for num_left in reversed(range(1 + num_retries)):
            try:
                await self._load_draft(draft)
                return
            except InferError as error:
                if not num_left:
                    raise
                log.warning("%s; trying again", error.message.rstrip())

    async def _load_draft(self, draft: ModelDraft) -> None:
        versions = self._versions_of(draft.name)
        kept = {
            version: runtime for version, runtime in versions.serving.items() if is_unchanged(draft, version, runtime)
        }
        versions.begin_load(draft.versions)
        begun_s = time.monotonic()
        runtimes = {version: self._new_runtime(draft, version) for version in draft.versions if version not in kept}
        self.running.update(runtimes.values())
        try:
            causes = await causes_of_failures(runtimes)
        except asyncio.CancelledError:
            for runtime in runtimes.values():
                runtime.unload()
            versions.fail_load(runtimes, {})
            raise
        if causes:
            for version in runtimes.keys() - causes.keys():
                runtimes[version].unload()
            versions.fail_load(runtimes, causes)
            raise load_failure(draft.name, causes)
        for runtime in runtimes.values():
            runtime.recorder.load_s = time.monotonic() - begun_s
        for runtime in kept.values():
            runtime.serve_beside(draft.versions)
        for before in versions.serve(kept | runtimes):
            before.unload()
        self._forget_responses(draft.name, runtimes)
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

    async def unload(self, model: str) -> None:
        """Returns before the requests of its versions have ended."""
        async with self._lock(model):
            self.unreadable.pop(model, None)
            versions = self._service.models.get(model)
            for runtime in () if versions is None else versions.unload():
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


def is_unchanged(draft: ModelDraft, version: str, runtime: ServedVersion) -> bool:
    """Whether a version that serves is what a load would give."""
    before = runtime.draft
    if version not in draft.versions or not draft.keeps_version(version, before):
        return False
    try:
        return draft.instance_groups == before.instance_groups
    except LoadError:  # which the load will raise, too
        return False


async def causes_of_failures(runtimes: Mapping[str, ServedVersion]) -> dict[str, str]:
    """Loads versions side by side. Returns why those failed that did."""
    results = await asyncio.gather(*(runtime.load() for runtime in runtimes.values()), return_exceptions=True)
    return {
        version: error.cause if isinstance(error, LoadError) else f"Internal: {error!r}"
        for version, error in zip(runtimes, results, strict=True)
        if error is not None
    }
