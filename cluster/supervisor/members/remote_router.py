"""The calls to the router, from the driver. What runs there is in `router_calls`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from ray.exceptions import RayError, RayTaskError

from slipstream.cluster.config.settings_by_name import ByName, by_name
from slipstream.cluster.supervisor.members.actor_handles import (
    first_death,
    reason_of,
    stop_actor,
)
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.status.instances_status import InstancesStatus
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.tensor_signals import TensorSignals
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus
from slipstream.router.status.version_status import VersionStatus
from slipstream.router.status.wanted_models import WantedList, WantedModel

T = TypeVar("T")


class RemoteRouter:
    """A router that runs in an actor, or none. Calls raise ConnectionError if there is none."""

    def __init__(self) -> None:
        self._actor: Any = None
        self._run: Any = None  # the pending call, while it serves

    async def death(self) -> str:
        return await first_death([self._run])

    async def _ask(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """The result of a call into the router's process. Raises ConnectionError if there is no router."""
        if self._run is None:
            raise ConnectionError("there is no router")
        try:
            return await call(self._actor)
        except RayError as error:
            raise ConnectionError(reason_of(error)) from error

    async def _make_read(self, call: Callable[[Any], Any]) -> None:
        """Makes the router read files. Raises ValueError if they cannot be read, ConnectionError if there is no
        router."""
        try:
            await self._ask(call)
        except ConnectionError as error:
            if isinstance(error.__cause__, RayTaskError):
                raise ValueError(str(error)) from error
            raise

    async def drain_worker(self, name: str, next_role: Role | None, migrate: bool) -> bool:
        """Empties a worker, which then ends or comes back in its next role. Returns False if it is not connected."""
        return await self._ask(lambda actor: actor.drain_worker.remote(name, next_role, migrate))

    async def expect_workers(self, expected: Mapping[str, ExpectedWorkers]) -> None:
        """Tells the router how many workers of each model are wanted, connected or not."""
        await self._ask(lambda actor: actor.expect_workers.remote(expected_by_name(expected)))

    async def set_mirror(self, model: str, version: str, percent: float | None) -> None:
        """Has so many percent of the requests copied to a version that gets no others; None: ends that. The next
        incarnation copies none before it is asked to."""
        await self._ask(lambda actor: actor.set_mirror.remote(model, version, percent))

    async def signals(self, model: str) -> Signals:
        """The recent load of a model and how well it was served: what a planner decides from."""
        return await self._ask(lambda actor: actor.signals.remote(model))

    async def versions(self, model: str) -> tuple[VersionStatus, ...]:
        """The state and the counts of each version of the model."""
        return await self._ask(lambda actor: actor.versions.remote(model))

    async def tensor_versions(self, model: str) -> TensorVersionsStatus | None:
        """How the versions of a model of the repository do; None if there is no such model."""
        return await self._ask(lambda actor: actor.tensor_versions.remote(model))

    async def instances_status(self, model: str) -> list[InstancesStatus]:
        """How many instances the versions of a model of the repository have; "": of all models."""
        return await self._ask(lambda actor: actor.instances_status.remote(model))

    async def tensor_signals(self) -> list[TensorSignals]:
        """The load of the instances of all models of the repository: what a planner decides from."""
        return await self._ask(lambda actor: actor.tensor_signals.remote())

    async def wanted_models(self, known: WantedList | None) -> WantedList:
        """The language models that the repository names, once they are others than those that are known."""
        return await self._ask(lambda actor: actor.wanted_models.remote(known))

    async def wanted_model_served(self, model: WantedModel) -> None:
        await self._ask(lambda actor: actor.wanted_model_served.remote(model))

    async def wanted_model_failed(self, model: WantedModel, reason: str) -> None:
        await self._ask(lambda actor: actor.wanted_model_failed.remote(model, reason))

    async def ping(self) -> None:
        """Returns when the router's event loop has answered."""
        await self._ask(lambda actor: actor.ping.remote())

    async def status(self) -> dict[str, Any]:
        """The contents of `/cluster/status`."""
        status: dict[str, Any] = json.loads(await self._ask(lambda actor: actor.status_body.remote()))
        return status

    async def stop(self) -> None:
        await stop_actor(self._actor, [self._run])


def expected_by_name(expected: Mapping[str, ExpectedWorkers]) -> dict[str, ByName[ExpectedWorkers]]:
    return {model: by_name(workers) for model, workers in expected.items()}
