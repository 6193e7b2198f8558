"""Keeps the pools of language models as the models of the repository want them, at the start and while it serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Protocol

from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.models.pool_step import PoolStep, ServedPools, next_step
from slipstream.router.status.wanted_models import Want, WantedList, WantedModel

AGAIN_S = 0.2  # after which a router that is gone is looked for again

log = logging.getLogger(__name__)


class WantingRouter(Protocol):
    """Calls raise OSError while there is no router."""

    @property
    def ready(self) -> asyncio.Event: ...
    async def wanted_models(self, known: WantedList | None) -> WantedList: ...
    async def wanted_model_served(self, model: WantedModel) -> None: ...
    async def wanted_model_failed(self, model: WantedModel, reason: str) -> None: ...


class PoolControl(Protocol):
    """What can be done with the pools of a model. All but `of` and `names` raise FleetError."""

    @property
    def names(self) -> Collection[str]:
        """The names of all models that the cluster has."""

    def of(self, name: str) -> ServedPools | None: ...
    async def add(self, model: WantedModel) -> None:
        """Starts the pools of a model. Returns when they serve."""

    async def exchange(self, model: WantedModel) -> None:
        """Returns when the new ones serve. If they do not come up, those before serve on."""

    async def until_served(self, name: str) -> None: ...
    async def remove(self, name: str) -> None:
        """Returns when they are gone."""

    async def until_removed(self, name: str) -> None: ...
    async def set_aliases(self, aliases: Mapping[str, tuple[str, ...]]) -> None:
        """Gives models those further names, of which each is there once. What cannot be given is left out."""


class RepositoryPools:
    """`run` until the cluster ends. One task a model does what `next_step` says until nothing is left to do; a model
    that cannot be served is reported to the router, which tells those that asked for it."""

    def __init__(self, router: WantingRouter, pools: PoolControl) -> None:
        self._router = router
        self._pools = pools
        self._wanted: dict[str, Want] = {}
        self._is_complete = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._naming = asyncio.Lock()

    async def run(self) -> None:
        known: WantedList | None = None
        try:
            while True:
                await self._router.ready.wait()
                try:
                    known = await self._router.wanted_models(known)
                except OSError:
                    known = None
                    await asyncio.sleep(AGAIN_S)
                else:
                    self._take(known)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, wanted: WantedList) -> None:
        self._wanted = {want.model.name: want for want in wanted.wants}
        self._is_complete = wanted.is_complete
        for name in {*self._wanted, *self._pools.names} - self._tasks.keys():
            self._tasks[name] = asyncio.create_task(self._settle(name), name=f"pools of {name}")

    async def _settle(self, name: str) -> None:
        """Until the model is as it is wanted, or has been given up."""
        done: Want | None = None
        try:
            while True:
                want = self._wanted.get(name)
                model = None if want is None else want.model
                step = next_step(model, self._pools.of(name), is_complete=self._is_complete)
                if step is PoolStep.NOTHING or (want is not None and want == done):
                    return
                try:
                    await self._perform(step, name, model)
                except FleetError as error:
                    if model is None:
                        log.warning("the pools of %s cannot be removed: %s", name, error.reason)
                        return
                    await self._report(model, error.reason)
                    done = want
                    continue
                await self._set_aliases()
                if step is not PoolStep.AWAIT_END:
                    done = want
                    await self._tell(model)
        except Exception as error:  # a fault of this program in the pools of one model leaves the others alone
            log.exception("the pools of %s are left as they are", name)
            if (want := self._wanted.get(name)) is not None:
                await self._report(want.model, f"{type(error).__name__}: {error}")
        finally:
            del self._tasks[name]

    async def _perform(self, step: PoolStep, name: str, model: WantedModel | None) -> None:
        if step is PoolStep.REMOVE:
            await self._pools.remove(name)
        elif step is PoolStep.AWAIT_END:
            await self._pools.until_removed(name)
            left = self._pools.of(name)
            if left is not None and left.is_leaving:  # who ended them has failed
                raise FleetError("unavailable", "model", f"{name} could not be removed")
        elif step is PoolStep.AWAIT:
            await self._pools.until_served(name)
        elif step is PoolStep.ADD and model is not None:
            await self._pools.add(model)
        elif model is not None:
            await self._pools.exchange(model)

    async def _set_aliases(self) -> None:
        """Those of the models that are served for the repository: the latest want of an alias counts."""
        async with self._naming:
            owners = {
                alias: want.model.name
                for want in sorted(self._wanted.values(), key=lambda want: want.number)
                for alias in want.model.aliases
            }
            served = [name for name in self._wanted if (pools := self._pools.of(name)) is not None and pools.asked]
            await self._pools.set_aliases(
                {name: tuple(alias for alias, owner in owners.items() if owner == name) for name in served}
            )

    async def _tell(self, model: WantedModel | None) -> None:
        if model is not None:
            with suppress(OSError):
                await self._router.wanted_model_served(model)

    async def _report(self, model: WantedModel, reason: str) -> None:
        log.warning("model %s of the repository cannot be served: %s", model.name, reason)
        with suppress(OSError):  # the next router wants it anew
            await self._router.wanted_model_failed(model, reason)
