"""The router as the supervisor knows it, and the calls to it, which tolerate that it may be gone or not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from slipstream.cluster.supervisor.managed import Managed, PendingChange
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.members.members import RouterControl
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.status.instances_status import InstancesStatus
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.tensor_signals import TensorSignals
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus
from slipstream.router.status.wanted_models import WantedList, WantedModel

PATIENCE_S = 5.0
RETRY_S = 0.2
COMING_S = 60.0  # in which a router that has died is followed by another one


@dataclass(slots=True)
class ManagedRouter(Managed[RouterControl]):
    """Every call gives up after `PATIENCE_S`, except `leave` and `drain`."""

    async def leave(self, grace_s: float) -> None:
        """Makes the router unready, and returns after so many seconds, in which load balancers notice and clients that
        still come are served. A router that follows meanwhile is unready as well."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + grace_s
        with suppress(OSError):
            async with asyncio.timeout_at(end_s):
                await self.member.leave()
        await asyncio.sleep(end_s - loop.time())

    async def drain(self, deadline_s: float) -> None:
        """Lets running requests finish, for at most `deadline_s` seconds; it takes no new ones meanwhile. If there is
        no router at the moment, or it dies, the next one is waited for: it continues what the last one had, and drains
        that."""
        end_s = asyncio.get_running_loop().time() + deadline_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end_s + 1.0):
                while not await self._has_drained(end_s):
                    self.ready.clear()  # the supervisor, which may hear of its end later, sets it for the next one

    async def _has_drained(self, end_s: float) -> bool:
        """Drains the router. False: it died meanwhile, and its successor is to be drained."""
        await self.ready.wait()
        try:
            await self.member.drain(max(end_s - asyncio.get_running_loop().time(), 0.0))
        except ConnectionError:
            return False
        return True

    async def drain_worker(self, name: str, pending_change: PendingChange) -> bool:
        """Starts to empty a worker. Returns False if there is no router, it does not answer, or it does not know the
        worker. That worker will connect to the next router, and can be drained then."""
        if self.ready.is_set():
            with suppress(OSError):
                async with asyncio.timeout(PATIENCE_S):
                    return await self.member.drain_worker(name, pending_change.next_role, pending_change.migrate)
        return False

    async def expect(self, expected: Mapping[str, ExpectedWorkers]) -> None:
        """Tells the router how many workers are wanted. The next router gets the numbers when it begins to serve."""
        if self.ready.is_set():
            with suppress(OSError):
                async with asyncio.timeout(PATIENCE_S):
                    await self.member.expect_workers(expected)

    async def cluster_status(self) -> dict[str, Any] | None:
        """The router's view of the cluster; None while there is no router or it does not answer."""
        if self.ready.is_set():
            with suppress(OSError):
                async with asyncio.timeout(PATIENCE_S):
                    return await self.member.status()
        return None

    async def signals(self, model: str) -> Signals:
        """The recent load of a model and how well it was served. Raises OSError while there is no router or it does not
        answer."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.member.signals(model)

    async def signals_to_show(self, model: str) -> dict[str, Any] | None:
        """The signals as plain values, for display; None while there is no router."""
        try:
            return asdict(await self.signals(model))
        except OSError:
            return None

    async def add_model(self, deployment: Deployment) -> None:
        """Makes the router serve a further model. If the router dies meanwhile, the next one is asked. Raises
        ValueError if it cannot read the model, OSError if there is no router for a while."""
        async with asyncio.timeout(COMING_S):
            while not await self._has_added(deployment):
                await asyncio.sleep(RETRY_S)

    async def _has_added(self, deployment: Deployment) -> bool:
        await self.ready.wait()
        try:
            await self.member.add_model(deployment)
        except ConnectionError:
            return False
        return True

    async def set_aliases(self, model: str, aliases: Sequence[str]) -> None:
        """Sets the further names of a model. The next router has them anyway."""
        with suppress(OSError):
            async with asyncio.timeout(PATIENCE_S):
                await self.member.set_aliases(model, aliases)

    async def set_tensor_versions(self, model: str, config: TensorVersionsConfig) -> None:
        """Divides the requests to a model of the repository between its versions. The next router does so anyway."""
        with suppress(OSError):
            async with asyncio.timeout(PATIENCE_S):
                await self.member.set_tensor_versions(model, config)

    async def tensor_versions(self, model: str) -> TensorVersionsStatus | None:
        """How the versions of a model of the repository do; None if there is no such model. A router that dies is
        followed by another one, which is asked then. Raises OSError if none answers."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await self.ready.wait()
                with suppress(ConnectionError):
                    return await self.member.tensor_versions(model)
                await asyncio.sleep(RETRY_S)

    async def set_instance_counts(self, model: str, config: InstanceCountsConfig) -> None:
        """Sets how many instances a model of the repository has. The next router does so anyway."""
        with suppress(OSError):
            async with asyncio.timeout(PATIENCE_S):
                await self.member.set_instance_counts(model, config)

    async def instances_status(self, model: str) -> list[InstancesStatus]:
        """How many instances the versions of a model of the repository have; "": of all models. Raises OSError while
        there is no router or it does not answer."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.member.instances_status(model)

    async def tensor_signals(self) -> list[TensorSignals]:
        """The load of the instances of all models of the repository. Raises OSError while there is no router or it does
        not answer."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.member.tensor_signals()

    async def resize_instances(
        self, model: str, version: str, count: int, reason: str, config: InstanceCountsConfig
    ) -> None:
        """Sets how many instances a version has, as a planner says. The next router begins with `config` of its
        model. Raises OSError as `tensor_signals`."""
        async with asyncio.timeout(PATIENCE_S):
            await self.member.resize_instances(model, version, count, reason, config)

    async def wanted_models(self, known: WantedList | None) -> WantedList:
        """The language models that the repository names, once they are others than those that are known. Raises OSError
        if there is no router any more."""
        return await self.member.wanted_models(known)

    async def wanted_model_served(self, model: WantedModel) -> None:
        """Tells the router that workers serve a model as its repository names it. Raises OSError."""
        async with asyncio.timeout(PATIENCE_S):
            await self.member.wanted_model_served(model)

    async def wanted_model_failed(self, model: WantedModel, reason: str) -> None:
        """Tells the router that there will be no workers for a model that its repository names. Raises OSError."""
        async with asyncio.timeout(PATIENCE_S):
            await self.member.wanted_model_failed(model, reason)

    async def remove_model(self, model: str, deadline_s: float) -> None:
        """Lets the requests of a model finish, for at most `deadline_s` seconds, and makes the router forget it. If the
        router dies meanwhile, the next one continues the requests, and is asked in its turn."""
        end_s = asyncio.get_running_loop().time() + deadline_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end_s + PATIENCE_S):
                while not await self._has_removed(model, end_s):
                    await asyncio.sleep(RETRY_S)
        self.member.forget_model(model)

    async def _has_removed(self, model: str, end_s: float) -> bool:
        """Has the router remove a model. False: there is no router at the moment."""
        await self.ready.wait()
        try:
            await self.member.remove_model(model, max(end_s - asyncio.get_running_loop().time(), 0.0))
        except ConnectionError:
            return False
        return True
