"""The processes of a cluster, as Ray actors: thin hosts for the router, for workers and for their ranks.

Ray starts and ends them, and tells their supervisor at once when one dies: the reference of a pending `run` call
fails with it. Nothing else goes through Ray. The class names show in `ps` and `top` as `ray::PrefillWorker.run`.

A host's constructor is cheap; `warm_up` imports what takes long, so that all processes of a cluster can do it at the
same time, before they know each other's addresses.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import os
from dataclasses import dataclass

import ray
import ray.util
import uvloop

from slipstream.cluster.process_log import redirect_output
from slipstream.router.config import RouterConfig
from slipstream.router.router import Addresses, Router
from slipstream.workers.config import WorkerConfig
from slipstream.workers.group import GroupAddress
from slipstream.workers.rank import RankWorker
from slipstream.workers.report import WorkerReport
from slipstream.workers.worker import Worker


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process is. `node_id` is Ray's, `node_ip` the address by which other nodes reach it."""

    pid: int
    node_id: str
    node_ip: str


class ProcessHost:
    """What every process of a cluster has."""

    def __init__(self, name: str, log_path: str | None) -> None:
        redirect_output(name, log_path)

    def warm_up(self, modules: tuple[str, ...]) -> Place:
        for module in modules:
            importlib.import_module(module)
        return Place(os.getpid(), ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())


class WorkerHost(ProcessHost):
    """Rank 0 of a worker group."""

    def __init__(self, name: str, log_path: str | None) -> None:
        super().__init__(name, log_path)
        self._worker: Worker | None = None

    def prepare(self, config: WorkerConfig) -> GroupAddress | None:
        self._worker = Worker(config)
        return self._worker.prepare()

    def run(self) -> None:
        """Returns after a stop. Raises WorkerFailed."""
        self._prepared().run()

    def report(self) -> WorkerReport:
        return self._prepared().report()

    def redirect(self, host: str, port: int) -> None:
        self._prepared().redirect(host, port)

    def stop(self) -> None:
        """Ends `run` at once; what must be finished is drained at the router before."""
        self._prepared().stop(drain=False)

    def _prepared(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("prepare was not called")
        return self._worker


class RankHost(ProcessHost):
    """A rank other than 0 of a worker group."""

    def run(self, config: WorkerConfig, rank: int, address: GroupAddress) -> None:
        """Returns when the leader has ended in order. Raises WorkerFailed."""
        RankWorker(config, rank, address).run()


class RouterHost(ProcessHost):
    """The router, on an event loop of its own in the thread of `run`."""

    def __init__(self, name: str, log_path: str | None) -> None:
        super().__init__(name, log_path)
        self._started: concurrent.futures.Future[tuple[Router, asyncio.AbstractEventLoop, Addresses]]
        self._started = concurrent.futures.Future()

    def run(self, config: RouterConfig, model_name: str, model_dir: str, worker_token: str) -> None:
        """Serves till stopped. Raises OSError if a port is taken."""
        uvloop.run(self._serve(Router(config, model_name, model_dir, worker_token)))

    async def _serve(self, router: Router) -> None:
        try:
            addresses = await router.start()
        except BaseException as error:
            self._started.set_exception(error)
            raise
        self._stopped = asyncio.Event()
        self._started.set_result((router, asyncio.get_running_loop(), addresses))
        await self._stopped.wait()
        await router.stop()

    def addresses(self) -> Addresses:
        """Blocks until the router listens."""
        return self._started.result()[2]

    def drain(self, deadline_s: float) -> None:
        """Takes no new requests; returns when the running ones have ended, or after `deadline_s` seconds."""
        router, loop, _ = self._started.result()
        asyncio.run_coroutine_threadsafe(router.drain(deadline_s), loop).result()

    def stop(self) -> None:
        """Ends `run`."""
        _, loop, _ = self._started.result()
        loop.call_soon_threadsafe(self._stopped.set)


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
