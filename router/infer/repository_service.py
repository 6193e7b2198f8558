"""Loads and unloads the models of a repository: at the start, by request, and where its files change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from slipstream.router.batching.resources.rate_limiter import RateLimiter
from slipstream.router.batching.resources.resource_pool import counts_by_device
from slipstream.router.batching.responses.response_cache import ResponseCache
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.unknown_models import unknown_models
from slipstream.router.infer.model_loads import ModelLoads
from slipstream.router.infer.requests.execution_gate import ExecutionGate
from slipstream.router.infer.requests.version_dispatch import DispatchOptions
from slipstream.router.infer.runtime_context import InstanceLauncher, RuntimeContext
from slipstream.router.infer.served_version import VersionFactory, VersionKinds
from slipstream.router.infer.tensor_service import TensorService
from slipstream.router.infer.version_runtime import VersionRuntime
from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.messages import ControlCall
from slipstream.router.model_repository.explicit_loads import ExplicitLoad, ExplicitLoads, ExplicitUnload
from slipstream.router.model_repository.load_plan import models_at_start
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.repository_error import (
    AMBIGUOUS,
    RepositoryError,
)
from slipstream.router.model_repository.sources.repository_watch import ModelStamp, changes_between
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_service import IndexEntry
from slipstream.router.tensors.model_spec import ModelPhase
from slipstream.router.tensors.tensor import RegionSlice, TensorData

log = logging.getLogger(__name__)
EXIT_TIMEOUT_S = 30.0  # as Triton's --exit-timeout-secs

INSTANCES_ONLY: Mapping[str, VersionFactory] = {}
AS_IT_IS = ExplicitLoad()  # with the configuration and the files of the repository


class RepositoryService:
    """RepositoryControl. `start` begins to load what the control mode says; `close` unloads everything.

    With `explicit_loads`, the loads that clients have asked for are done again by the next router. `factories` make the
    versions of models of these backends; all others are executed by instances, which `launcher` starts. `cache` is
    for the responses of all."""

    def __init__(
        self,
        config: RepositoryConfig,
        repository: ModelRepository,
        service: TensorService,
        launcher: InstanceLauncher,
        explicit_loads: ExplicitLoads | None = None,
        factories: Mapping[str, VersionFactory] = INSTANCES_ONLY,
        cache: ResponseCache | None = None,
    ) -> None:
        self._config = config
        self._repository = repository
        self._service = service
        self._explicit_loads = explicit_loads
        self.cache = cache
        self.counts = dict(config.instances)  # which may change; for the next instances of a model
        options = DispatchOptions(config.request_retries, cache, gate_of(config))
        self._files = ThreadPoolExecutor(config.load_threads, thread_name_prefix="repository")
        context = RuntimeContext(
            launcher, service, self, options, backend_config=config.backend_config, counts=self.counts
        )
        versions = VersionKinds(factories, partial(VersionRuntime, context))
        self._loads = ModelLoads(config, repository, service, versions, cache, self._files)
        self.exit_timeout_s = EXIT_TIMEOUT_S  # which requests may have to end after `close`
        self._is_local = not any("://" in path for path in config.paths)
        self._names: list[str] = []
        self._ambiguous: list[str] = []  # models that are in several folders, so that none of them is served
        self._stamped: dict[str, ModelStamp] = {}  # when the repository was read last
        self._is_starting = self._is_leaving = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_running(self) -> int:
        """Versions that load, serve, or end their requests; 0 once everything is unloaded."""
        return len(self._loads.running)

    async def start(self) -> None:
        """Loads the models of the start, `load_threads` at a time. Raises InferError for one that could not be loaded
        if that is to end the server, RepositoryError if the repository cannot be read, ValueError for settings of
        models that it does not have."""
        config = self._config
        self._is_starting = True  # the server is unready until all have been tried
        try:
            results = await self._load_first()
        finally:
            self._is_starting = False
        raise_unexpected(results)
        for failure in filter(None, results):
            if config.exit_on_error and config.control_mode != "poll":
                raise failure

    async def _load_first(self) -> Sequence[BaseException | None]:
        """What came of each load of the start; None: it has succeeded."""
        config = self._config
        try:
            self._stamped = await self._stamps()
            await self._look()
        except RepositoryError as error:
            if config.exit_on_error:
                raise
            log.error("the repository cannot be read: %s", error.cause)
        else:
            self._check_settings()
        names = models_at_start(config.control_mode, self._names, config.load_models)
        asked = await self._asked_before()
        for name, last in asked.items():
            if isinstance(last, ExplicitUnload):
                self._loads.note_unloaded(name, last.versions)
        own = {name: last for name, last in asked.items() if isinstance(last, ExplicitLoad)}
        names = [name for name in dict.fromkeys((*names, *own)) if name in own or name not in asked]
        async with self._loads.one_pass(asyncio.Semaphore(config.load_threads)) as loads:

            async def load_first(name: str) -> None:
                load = own.get(name, AS_IT_IS)
                await self._loads.load_in(loads, name, load.config_json, load.files)

            return await asyncio.gather(*map(load_first, names), return_exceptions=True)

    def _check_settings(self) -> None:
        """Raises ValueError if one is for a model that the repository does not have, and will not have."""
        for text in unknown_models(self._config, self._names):
            if self._config.exit_on_error and self._config.control_mode == "none":
                raise ValueError(text)
            log.warning("%s", text)

    async def _asked_before(self) -> dict[str, ExplicitLoad | ExplicitUnload]:
        """What clients of an earlier router have loaded or unloaded."""
        if self._explicit_loads is None or self._config.control_mode != "explicit":
            return {}
        return await asyncio.get_running_loop().run_in_executor(self._files, self._explicit_loads.latest)

    async def poll(self) -> None:
        """Reads the repository again every `poll_s`, and loads what has changed. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._config.poll_s)
            try:
                await self.poll_once()
            except RepositoryError as error:
                log.error("the repository cannot be read: %s", error.cause)
            except Exception:  # the next poll may succeed
                log.exception("the repository was not polled")

    async def poll_once(self) -> None:
        """Reads the repository again, and loads what has changed. Raises RepositoryError."""
        after = await self._stamps()
        await self._look()
        changes, self._stamped = changes_between(self._stamped, after), after
        async with self._loads.one_pass() as loads:
            work = [self._loads.load_in(loads, name) for name in (*changes.added, *changes.changed)]
            work += [self._loads.unload(name) for name in changes.removed]
            raise_unexpected(await asyncio.gather(*work, return_exceptions=True))

    async def close(self) -> None:
        """Unloads all models and waits until their requests have ended and their instances are gone, for at most
        `exit_timeout_s`. Safe to call twice."""
        for task in self._tasks:
            task.cancel()
        try:
            async with asyncio.timeout(self.exit_timeout_s):
                await asyncio.gather(*(self._loads.unload(name) for name in list(self._service.models)))
                await asyncio.gather(*(runtime.wait_for_end() for runtime in self._loads.running))
        except TimeoutError:
            left = ", ".join(sorted({runtime.draft.name for runtime in self._loads.running}))
            log.warning("models have not ended within %g s: %s", self.exit_timeout_s, left)
        self._files.shutdown(wait=False)

    def leave(self) -> None:
        """The server is unready from now on, so that load balancers send their requests elsewhere."""
        self._is_leaving = True

    def is_server_ready(self) -> bool:
        if self._is_leaving or self._is_starting:
            return False
        if not self._config.strict_readiness:
            return True
        return not any(versions.is_loading or versions.has_failed for versions in self._service.models.values())

    @property
    def failures(self) -> Mapping[str, str]:
        """Models of the repository whose latest load has failed, and why."""
        return {name: cause for name, cause in self._loads.failures.items() if name in self._names}

    def index(self, *, only_ready: bool = False) -> Sequence[IndexEntry]:
        """A model without a version that was tried is listed by its name."""
        if self._is_local:  # a few directories are read faster than a thread is asked
            with contextlib.suppress(RepositoryError):
                self._names = self._repository.names()
        entries: list[IndexEntry] = []
        models = self._service.models
        for name in sorted({*self._names, *(name for name, versions in models.items() if not versions.is_idle)}):
            versions = models.get(name)
            if name in self._ambiguous:
                entries.append(IndexEntry(name, "", ModelPhase.UNAVAILABLE, AMBIGUOUS))
            elif versions is not None and not versions.is_empty:
                entries += versions.entries(only_ready=only_ready)
            elif not only_ready:
                entries.append(IndexEntry(name))
        return entries

    async def load(self, model: str, config_json: str = "", files: Mapping[str, bytes] | None = None) -> None:
        self._check_explicit()
        await self._loads.load(model, config_json, files)
        if self._explicit_loads is not None:
            note = partial(self._explicit_loads.loaded, model, ExplicitLoad(config_json, files))
            await asyncio.get_running_loop().run_in_executor(self._files, note)

    async def unload(self, model: str, *, with_dependents: bool = False) -> None:
        self._check_explicit()
        await self._loads.unload(model, with_dependents=with_dependents)
        if self._explicit_loads is not None:
            versions = self._service.models.get(model)
            known = [entry.version for entry in versions.entries()] if versions is not None else []
            note = partial(self._explicit_loads.unloaded, model, known)
            await asyncio.get_running_loop().run_in_executor(self._files, note)

    async def register(self, folder: str, names_by_folder: Mapping[str, str]) -> None:
        """Adds a folder or address of models, some of them with other names than those of their folders. Raises
        InferError."""
        self._check_registers("registration")
        register = partial(self._repository.register, folder, names_by_folder)
        await asyncio.get_running_loop().run_in_executor(self._files, register)
        await self._look()

    async def unregister(self, folder: str) -> None:
        """Removes a folder or address; the models that serve go on. Raises InferError."""
        self._check_registers("unregistration")
        await asyncio.get_running_loop().run_in_executor(self._files, self._repository.unregister, folder)
        await self._look()

    def control(self, call: ControlCall, link: InstanceLink) -> None:
        """What a model asks for (`load_model`, `unload_model`, `is_model_ready`)."""
        task = asyncio.get_running_loop().create_task(self._answer(call, link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: ControlCall, link: InstanceLink) -> None:
        try:
            value = True
            if call.action == "is_ready":
                value = self._service.is_ready(call.model, call.model_version)
            elif call.action == "load":
                files = {name: bytes_of(data) for name, data in call.files.items()}
                await self.load(call.model, call.config_json, files or None)
            else:
                await self.unload(call.model)
        except InferError as error:
            link.control_result(call.call, error.message)
        except Exception as error:
            log.exception("what model %r was asked by another one has failed: %s", call.model, call.action)
            link.control_result(call.call, f"Internal: {error!r}")
        else:
            link.control_result(call.call, None, value)

    def _check_explicit(self) -> None:
        if self._config.control_mode != "explicit":
            message = "explicit model load / unload is not allowed if polling is enabled"
            raise InferError(message, InferErrorCode.UNAVAILABLE)

    def _check_registers(self, what: str) -> None:
        if self._config.control_mode != "explicit":
            message = f"repository {what} is not allowed if model control mode is not EXPLICIT"
            raise InferError(message, InferErrorCode.UNSUPPORTED)

    async def _stamps(self) -> dict[str, ModelStamp]:
        return await asyncio.get_running_loop().run_in_executor(self._files, self._repository.stamps)

    async def _look(self) -> None:
        """Which models there are now."""
        loop = asyncio.get_running_loop()
        self._names = await loop.run_in_executor(self._files, self._repository.names)
        self._ambiguous = await loop.run_in_executor(self._files, self._repository.ambiguous)


def bytes_of(data: TensorData) -> bytes:
    return bytes(data.view if isinstance(data, RegionSlice) else data)


def raise_unexpected(results: Sequence[BaseException | None]) -> None:
    """Loads that failed are in the log and the index; anything else is a fault of this program."""
    for result in results:
        if result is not None and not isinstance(result, InferError):
            raise result


def gate_of(config: RepositoryConfig) -> ExecutionGate | None:
    """None where executions need no resources."""
    if config.rate_limit == "off":
        return None
    resources = [(one.name, one.count, one.device) for one in config.rate_limit_resources]
    return ExecutionGate(RateLimiter(counts_by_device(resources)), asyncio.get_running_loop().call_soon)
