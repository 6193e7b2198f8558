"""The processes of a cluster, as Ray actors: thin hosts for the router, for workers and for their ranks.

Ray starts and ends them, and tells their supervisor at once when one dies, because the reference of a pending `run`
call then fails. Nothing else goes through Ray. `ps` and `top` show the class names as `ray::PrefillWorker.run`.

A host's constructor is cheap. `warm_up` does the slow imports, so that all processes of a cluster can do them at the
same time, before they know each other's addresses. The driver imports this module as well and must not wait for torch,
so the router and the workers are imported where they are created. Settings come `by_name`, because a process may be of
another version than its driver while Slipstream is upgraded.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray
import ray.util
import uvloop

from slipstream.cluster.config.settings_by_name import ByName, settings_of
from slipstream.cluster.processes.process_log import redirect_output
from slipstream.cluster.supervisor.members.routed_model import RoutedModel, RoutedText
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.router_config import DispatchConfig, RouterConfig
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.model_repository.repository_error import RepositoryError
from slipstream.router.process.addresses import Addresses
from slipstream.router.process.gc_tuning import spare_garbage_collector
from slipstream.router.process.grpc_tuning import spare_grpc_threads
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.status.instances_status import InstancesStatus
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.tensor_signals import TensorSignals
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus
from slipstream.router.status.version_status import VersionStatus
from slipstream.router.status.wanted_models import WantedList, WantedModel
from slipstream.router.tensors.infer_error import InferError
from slipstream.workers.config.worker_config import WorkerConfig
from slipstream.workers.instances.host_config import InstanceHostConfig
from slipstream.workers.telemetry.worker_report import WorkerReport

if TYPE_CHECKING:
    from slipstream.router.catalog.served_model import ModelSource
    from slipstream.router.router import Router
    from slipstream.workers.group.group_executor import GroupAddress
    from slipstream.workers.instances.instance_host import InstanceHost
    from slipstream.workers.worker import Worker

T = TypeVar("T")


class ModelsNotLoaded(Exception):  # noqa: N818 - reads as the sentence it carries
    """Models of the repository cannot be loaded, and that is to end the router."""


@dataclass(frozen=True, slots=True)
class ProcessLocation:
    """Where a process runs. `node_id` is Ray's, `node_ip` the address by which other nodes reach it."""

    pid: int
    node_id: str
    node_ip: str


class ProcessHost:
    """What all processes of a cluster have in common."""

    def __init__(self, name: str, log_path: str | None, log_format: str | None = None) -> None:
        redirect_output(name, log_path, log_format)
        # Ray's handler would end the main thread, which answers its calls, and leave the others running for a minute.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def warm_up(self, modules: tuple[str, ...]) -> ProcessLocation:
        for module in modules:
            with contextlib.suppress(ModuleNotFoundError):  # the driver may be of another version
                importlib.import_module(module)
        node_ip: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return ProcessLocation(os.getpid(), ray.get_runtime_context().get_node_id(), node_ip)


class WorkerHost(ProcessHost):
    """Rank 0 of a worker group. When `run` has returned after a drain, `prepare` and `run` may be called again, to go
    on with another model."""

    def __init__(self, name: str, log_path: str | None, log_format: str | None = None) -> None:
        super().__init__(name, log_path, log_format)
        self._worker: Worker | None = None

    def prepare(self, config: ByName[WorkerConfig]) -> GroupAddress | None:
        from slipstream.workers.worker import Worker

        predecessor = None if self._worker is None else self._worker.report()
        self._worker = Worker(settings_of(config), predecessor)  # holds nothing of the one before, which can be freed
        return self._worker.prepare()

    def run(self, address: GroupAddress | None) -> None:
        """Serves; returns after a stop. Raises WorkerFailed. `address` is the result of `prepare`, which Ray waits for
        before it makes this call."""
        self._prepared().run()

    def report(self, address: GroupAddress | None) -> WorkerReport:
        """The worker's state. For `address` see `run`."""
        return self._prepared().report()

    def redirect(self, host: str, port: int) -> None:
        self._prepared().redirect(host, port)

    def stop(self) -> None:
        """Ends `run` at once. Requests that should finish have to be drained at the router first."""
        self._prepared().stop(drain=False)

    def _prepared(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("prepare was not called")
        return self._worker


class RankHost(ProcessHost):
    """A rank other than 0 of a worker group. `run` may be called again when it has returned normally."""

    def __init__(self, name: str, log_path: str | None, log_format: str | None = None) -> None:
        super().__init__(name, log_path, log_format)
        self._has_run = False

    def run(self, config: ByName[WorkerConfig], rank: int, address: GroupAddress) -> None:
        """Returns when the leader has ended normally. Raises WorkerFailed."""
        from slipstream.workers.group.rank_worker import RankWorker

        has_predecessor, self._has_run = self._has_run, True
        RankWorker(settings_of(config), rank, address, has_predecessor=has_predecessor).run()


class RouterHost(ProcessHost):
    """The router, on an event loop in the thread of `run`. No method is a coroutine, because Ray would then run all of
    them on an event loop of its own."""

    def __init__(self, name: str, log_path: str | None, log_format: str | None = None) -> None:
        super().__init__(name, log_path, log_format)
        self._serving: concurrent.futures.Future[ServingState] = concurrent.futures.Future()

    def warm_up(self, modules: tuple[str, ...]) -> ProcessLocation:
        spare_grpc_threads()  # before the import of grpcio
        return super().warm_up(modules)

    def run(
        self,
        config: ByName[RouterConfig],
        models: tuple[ByName[RoutedModel], ...],
        worker_token: str,
        expected: Mapping[str, ByName[ExpectedWorkers]],
        repository: ByName[RepositoryConfig],
        instances_path: Path | None,
        keeper: Path | None,
        is_ending: bool,
        kv_budget_bytes: int | None,
    ) -> None:
        """Serves until stopped; one that `is_ending` only goes on with the clients of the previous router. Raises
        OSError if a port is taken, FilesChanged if what it reads of a model belongs to none of its manifests."""
        from slipstream.router.router import Router

        workers = settings_by_model(expected)
        router = Router(
            settings_of(config),
            [source for model in map(settings_of, models) for source in sources_of(model, workers)],
            worker_token,
            holder_path=keeper,
            is_ending=is_ending,
            kv_budget_bytes=kv_budget_bytes,
            repository=settings_of(repository),
            instances_path=instances_path,
        )
        uvloop.run(serve_until_stopped(router, workers, self._serving))

    def listening(self) -> Addresses:
        """Blocks until the router listens."""
        return self._serving.result().addresses

    def leave(self) -> None:
        """Is unready from now on, and serves what still comes."""
        self._ask(lambda router: router.leave())

    def drain(self, deadline_s: float) -> None:
        """Takes no new requests. Returns when the running ones have ended, or after `deadline_s` seconds."""
        serving = self._serving.result()
        asyncio.run_coroutine_threadsafe(serving.router.drain(deadline_s), serving.loop).result()

    def drain_worker(self, name: str, next_role: Role | None, migrate: bool) -> bool:
        """Empties a worker, which then ends or comes back in its next role. Returns False if it is not connected."""
        return self._ask(lambda router: router.service.worker_port.drain(name, next_role, migrate))

    def status_body(self) -> bytes:
        """The JSON of `/cluster/status`."""
        return self._ask(lambda router: router.front.status_body())

    def expect_workers(self, expected: Mapping[str, ByName[ExpectedWorkers]]) -> None:
        """Sets how many workers of each model the router expects, without waiting for it."""
        serving = self._serving.result()
        serving.loop.call_soon_threadsafe(serving.router.models.expect, settings_by_model(expected))

    def add_model(self, model: ByName[RoutedModel]) -> None:
        """Serves a further model. Raises ValueError or OSError if it cannot be read."""
        source = source_of(settings_of(model), ExpectedWorkers())
        self._await(lambda router: router.models.add(source))

    def remove_model(self, model: str, deadline_s: float) -> None:
        """Returns when the requests of a model have ended and it is forgotten, or after `deadline_s` seconds."""
        with contextlib.suppress(LookupError):  # it was forgotten before
            self._await(lambda router: router.models.remove(model, deadline_s))

    def set_aliases(self, model: str, aliases: tuple[str, ...]) -> None:
        """Sets the further names of a model."""
        self._ask(lambda router: router.models.set_aliases(model, aliases))

    def set_split(self, model: str, split: dict[str, float] | None) -> None:
        """Sets each version's share of new requests."""
        self._ask(lambda router: router.service.set_split(model, split))

    def set_mirror(self, model: str, version: str, percent: float | None) -> None:
        """Has requests copied to a version, or ends that."""
        self._ask(lambda router: router.service.set_mirror(model, version, percent))

    def add_text(self, text: ByName[RoutedText]) -> None:
        """A version has a text of its own. Raises ValueError or OSError if it cannot be read."""
        source = source_of_text(settings_of(text))
        self._await(lambda router: router.models.add_text(source))

    def adopt_text(self, text: ByName[RoutedText]) -> None:
        """The text of a version is that of its model from now on."""
        source = source_of_text(settings_of(text))
        self._await(lambda router: router.models.set_text(source))
        self._ask(lambda router: router.models.remove_text(source.name, source.text_of))

    def remove_text(self, model: str, version: str) -> None:
        """The version is served no more."""
        self._ask(lambda router: router.models.remove_text(model, version))

    def signals(self, model: str) -> Signals:
        """The recent load of a model and how well it was served: what a planner decides from."""
        return self._ask(lambda router: router.service.signals_of(model))

    def follow(self, model: str, config: ByName[DispatchConfig]) -> None:
        """Makes the router take over changed settings of a model's dispatcher, without waiting for it."""
        serving = self._serving.result()
        serving.loop.call_soon_threadsafe(serving.router.service.follow, model, settings_of(config))

    def versions(self, model: str) -> tuple[VersionStatus, ...]:
        """The state and the counts of each version of the model."""
        return self._ask(lambda router: router.service.snapshot_of(model).versions)

    def wanted_models(self, known: WantedList | None) -> WantedList:
        """The language models that the repository names. Blocks until they are others than those that are known."""
        return self._await(lambda router: router.wanted_models(known))

    def wanted_model_failed(self, model: WantedModel, reason: str) -> None:
        """No workers can be started for a language model that the repository names."""
        self._ask(lambda router: router.wanted_model_failed(model, reason))

    def wanted_model_served(self, model: WantedModel) -> None:
        """Workers serve a language model as the repository names it."""
        self._ask(lambda router: router.wanted_model_served(model))

    def set_tensor_versions(self, model: str, config: ByName[TensorVersionsConfig]) -> None:
        """How the requests to a model of the repository are divided between its versions."""
        self._ask(lambda router: router.set_tensor_versions(model, settings_of(config)))

    def tensor_versions(self, model: str) -> TensorVersionsStatus | None:
        """How the versions of a model of the repository do; None if there is no such model."""
        return self._ask(lambda router: router.tensor_versions(model))

    def set_instance_counts(self, model: str, config: ByName[InstanceCountsConfig]) -> None:
        """How many instances a model of the repository has."""
        self._ask(lambda router: router.set_instance_counts(model, settings_of(config)))

    def instances_status(self, model: str) -> list[InstancesStatus]:
        """How many instances the versions of a model of the repository have; "": of all models."""
        return self._ask(lambda router: router.instances_status(model))

    def tensor_signals(self) -> list[TensorSignals]:
        """The load of the instances of all models: what a planner decides from."""
        return self._ask(lambda router: router.tensor_signals())

    def resize_instances(self, model: str, version: str, count: int, reason: str) -> None:
        """A planner says how many instances a version has."""
        self._ask(lambda router: router.resize_instances(model, version, count, reason))

    def ping(self) -> None:
        """Returns when the event loop has answered."""
        self._ask(lambda router: None)

    def stop(self) -> None:
        """Ends `run`."""
        serving = self._serving.result()
        serving.loop.call_soon_threadsafe(serving.stopped.set)

    def _ask(self, call: Callable[[Router], T]) -> T:
        """Makes a call on the router's event loop, and waits for its result. Raises what the call raises."""
        serving = self._serving.result()

        async def ask() -> T:
            return call(serving.router)

        return asyncio.run_coroutine_threadsafe(ask(), serving.loop).result()

    def _await(self, call: Callable[[Router], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine on the router's event loop to its end. Raises what it raises."""
        serving = self._serving.result()
        return asyncio.run_coroutine_threadsafe(call(serving.router), serving.loop).result()


def sources_of(model: RoutedModel, workers: Mapping[str, ExpectedWorkers]) -> Iterator[ModelSource]:
    """The model, and the texts of its versions, in the form that the router takes."""
    yield source_of(model, workers.get(model.served.name, ExpectedWorkers()))
    yield from map(source_of_text, model.texts)


def source_of_text(text: RoutedText) -> ModelSource:
    from slipstream.router.catalog.served_model import ModelSource  # imports the tokenizer

    served = text.served
    return ModelSource(
        served.name,
        Path(served.path),
        served.generation_config,
        served.chat_template_content_format,
        text.manifests,
        text_of=text.version,
        parsers=served.parsers,
    )


def source_of(model: RoutedModel, expected: ExpectedWorkers) -> ModelSource:
    """The model in the form that the router takes."""
    from slipstream.router.catalog.served_model import ModelSource  # imports the tokenizer

    served = model.served
    return ModelSource(
        served.name,
        Path(served.path),
        served.generation_config,
        served.chat_template_content_format,
        model.manifests,
        served.aliases,
        model.dispatch,
        has_prefill_pool=expected.num_prefill > 0,
        weight=model.weight,
        parsers=served.parsers,
    )


def settings_by_model(expected: Mapping[str, ByName[ExpectedWorkers]]) -> dict[str, ExpectedWorkers]:
    return {model: settings_of(workers) for model, workers in expected.items()}


@dataclass(frozen=True, slots=True)
class RunningHost:
    """An instance host, and the event loop on which it runs."""

    host: InstanceHost
    loop: asyncio.AbstractEventLoop


@dataclass(frozen=True, slots=True)
class ServingState:
    """A router that listens, and the event loop on which it runs."""

    router: Router
    loop: asyncio.AbstractEventLoop
    addresses: Addresses
    stopped: asyncio.Event


async def serve_until_stopped(
    router: Router, expected: Mapping[str, ExpectedWorkers], serving: concurrent.futures.Future[ServingState]
) -> None:
    """Sets the result of `serving` when the router listens. Raises ModelsNotLoaded."""
    addresses, stopped = await router.start(), asyncio.Event()
    router.models.expect(expected)
    await router.take_over()
    spare_garbage_collector()
    serving.set_result(ServingState(router, asyncio.get_running_loop(), addresses, stopped))
    try:
        await router.serve_until(stopped.wait())
    except (InferError, RepositoryError, ValueError) as error:
        raise ModelsNotLoaded(f"a model of the repository cannot be served: {error}") from None
    finally:
        await router.stop()


class InstancesHost(ProcessHost):
    """Starts and watches the instances of tensor models on its node, on an event loop in the thread of `run`."""

    def __init__(self, name: str, log_path: str | None, log_format: str | None = None) -> None:
        super().__init__(name, log_path, log_format)
        self._running: concurrent.futures.Future[RunningHost] = concurrent.futures.Future()

    def run(self, config: ByName[InstanceHostConfig]) -> None:
        """Serves until stopped. Raises HostRefused."""
        from slipstream.workers.instances.instance_host import InstanceHost

        async def serve() -> None:
            host = InstanceHost(settings_of(config))
            self._running.set_result(RunningHost(host, asyncio.get_running_loop()))
            await host.run()

        uvloop.run(serve())

    def connected(self) -> None:
        """Blocks until the router has welcomed it."""
        running = self._running.result()
        asyncio.run_coroutine_threadsafe(running.host.is_connected.wait(), running.loop).result()

    def stop(self, grace_s: float) -> None:
        """Lets the instances finalize, for at most `grace_s` seconds, and ends `run`."""
        running = self._running.result()
        running.loop.call_soon_threadsafe(running.host.stop, grace_s)


class PrefillWorker(WorkerHost):
    """Shows in `ps`."""


class DecodeWorker(WorkerHost):
    """Shows in `ps`."""


class PrefillRank(RankHost):
    """Shows in `ps`."""


class DecodeRank(RankHost):
    """Shows in `ps`."""


class ServingRouter(RouterHost):
    """Shows in `ps`."""


class TensorInstances(InstancesHost):
    """Shows in `ps`."""
