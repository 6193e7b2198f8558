"""The workers of all language models that a repository names."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.in_process.language.worker_group import WorkerGroup
from slipstream.cluster.in_process.language.worker_plan import WorkerContact, worker_plan
from slipstream.cluster.models.pool_step import ServedPools, asked_as
from slipstream.cluster.repository.downloads import Downloads
from slipstream.cluster.terminal.console import Console
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.router import Router
from slipstream.router.status.wanted_models import WantedList, WantedModel

GRACE_S = 5.0  # for what still runs when a model is unloaded


class EmbeddedRouterPort:
    """The router of this process as a WantingRouter."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.ready = asyncio.Event()
        self.ready.set()

    async def wanted_models(self, known: WantedList | None) -> WantedList:
        return await self._router.wanted_models(known)

    async def wanted_model_served(self, model: WantedModel) -> None:
        self._router.wanted_model_served(model)

    async def wanted_model_failed(self, model: WantedModel, reason: str) -> None:
        self._router.wanted_model_failed(model, reason)


@dataclass(slots=True)
class LocalPool:
    asked: str
    workers: WorkerGroup
    is_leaving: bool = False


class LocalPools:
    """PoolControl, on this machine. `folder` is for files of workers. A model that is wanted with other settings has a
    gap: the workers before end first."""

    def __init__(self, router: Router, repository: RepositoryConfig, contact: WorkerContact, folder: Path) -> None:
        self._router = router
        self._repository = repository
        self._contact = contact
        self._folder = folder
        self._pools: dict[str, LocalPool] = {}
        self._num_started = 0
        self._downloads = Downloads(Console(sys.stderr), must_be_newest=False)

    @property
    def names(self) -> Collection[str]:
        return list(self._pools)

    def of(self, name: str) -> ServedPools | None:
        pool = self._pools.get(name)
        return None if pool is None else ServedPools(pool.asked, pool.is_leaving)

    async def add(self, model: WantedModel) -> None:
        self._num_started += 1
        folder = self._folder / f"model-{self._num_started}"
        folder.mkdir()
        plan = await asyncio.to_thread(worker_plan, model, self._repository, folder, self._contact, self._downloads)
        try:
            await self._router.models.add(plan.source)
        except (OSError, ValueError) as error:
            raise FleetError("invalid", "config", str(error)) from None
        self._pools[model.name] = LocalPool(asked_as(model), WorkerGroup(plan.workers, folder))
        try:
            self._pools[model.name].workers.start()
            await self.until_served(model.name)
        except (OSError, FleetError) as error:
            await self.remove(model.name)
            raise FleetError("unavailable", "workers", str(error)) from None

    async def exchange(self, model: WantedModel) -> None:
        await self.remove(model.name)
        await self.add(model)

    async def until_served(self, name: str) -> None:
        """Raises FleetError."""
        workers = self._pools[name].workers
        while not self._router.service.has_workers(name):
            change = asyncio.ensure_future(self._router.service.worker_port.wait_for_change())
            waited: list[asyncio.Future[Any]] = [change, workers.failed]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
            if workers.failed.done():
                raise FleetError("unavailable", "workers", workers.failed.result())
        workers.served()

    async def remove(self, name: str) -> None:
        pool = self._pools[name]
        pool.is_leaving = True
        with contextlib.suppress(LookupError):
            await self._router.models.remove(name, GRACE_S)
        await pool.workers.stop(GRACE_S)
        del self._pools[name]

    async def set_aliases(self, aliases: Mapping[str, tuple[str, ...]]) -> None:
        """One that another model has moves to the model that is to have it. Those that are names stay what they are."""
        for name, wanted in aliases.items():
            with contextlib.suppress(LookupError, ValueError):
                self._router.models.set_aliases(name, [alias for alias in wanted if alias not in self._pools])

    async def until_removed(self, name: str) -> None:
        """A removal is never under way when this is asked: one task a model does all of its steps."""

    async def stop(self) -> None:
        """Ends all workers, and what is being downloaded."""
        self._downloads.abandon()  # the end of the event loop waits for the threads
        await asyncio.gather(*(pool.workers.stop(GRACE_S) for pool in self._pools.values()))
