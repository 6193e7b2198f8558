"""The processes of a cluster, as Ray actors: thin hosts for the router, for workers and for their ranks.

Ray starts and ends them, and tells their supervisor at once when one dies, because the reference of a pending `run`
call then fails. Nothing else goes through Ray. `ps` and `top` show the class names as `ray::PrefillWorker.run`.

A host's constructor is cheap. `warm_up` does the slow imports, so that all processes of a cluster can do them at the
same time, before they know each other's addresses. The driver imports this module as well and must not wait for torch,
so the router and the workers are imported where they are created. A process may be of another version than its driver
while Slipstream is upgraded. Settings therefore come `by_name`, and the classes that Ray pickles by the name of this
module stay in it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import ray
import ray.util
import uvloop

from slipstream.cluster.config.settings_by_name import ByName, settings_of
from slipstream.cluster.processes.process_log import redirect_output
from slipstream.cluster.supervisor.members.model_sources import sources_of
from slipstream.cluster.supervisor.members.routed_model import RoutedModel
from slipstream.cluster.supervisor.members.router_calls import RouterCalls, ServingState, settings_by_model
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.model_repository.repository_error import RepositoryError
from slipstream.router.process.gc_tuning import spare_garbage_collector
from slipstream.router.process.grpc_tuning import spare_grpc_threads
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.tensors.infer_error import InferError
from slipstream.workers.config.worker_config import WorkerConfig
from slipstream.workers.instances.host_config import InstanceHostConfig
from slipstream.workers.telemetry.worker_report import WorkerReport

if TYPE_CHECKING:
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


class RouterHost(ProcessHost, RouterCalls):
    """The router, on an event loop in the thread of `run`, and the calls to it."""

    def __init__(self, name: str, log_path: str | None, log_format: str | None = None) -> None:
        ProcessHost.__init__(self, name, log_path, log_format)
        RouterCalls.__init__(self)

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
        holder_path: Path | None,
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
            holder_path=holder_path,
            is_ending=is_ending,
            kv_budget_bytes=kv_budget_bytes,
            repository=settings_of(repository),
            instances_path=instances_path,
        )
        uvloop.run(serve_until_stopped(router, workers, self._serving))


@dataclass(frozen=True, slots=True)
class RunningHost:
    """An instance host, and the event loop on which it runs."""

    host: InstanceHost
    loop: asyncio.AbstractEventLoop


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
