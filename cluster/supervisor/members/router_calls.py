"""The calls of the driver to a router in another process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream.cluster.config.settings_by_name import ByName, settings_of
from slipstream.cluster.supervisor.members.model_sources import source_of, source_of_text
from slipstream.cluster.supervisor.members.routed_model import RoutedModel, RoutedText
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.process.addresses import Addresses
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.status.instances_status import InstancesStatus
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.tensor_signals import TensorSignals
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus
from slipstream.router.status.version_status import VersionStatus
from slipstream.router.status.wanted_models import WantedList, WantedModel

if TYPE_CHECKING:
    from slipstream.router.router import Router

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServingState:
    """A router that listens, and the event loop on which it runs."""

    router: Router
    loop: asyncio.AbstractEventLoop
    addresses: Addresses
    stopped: asyncio.Event


class RouterCalls:
    """Each waits until the router listens. No method is a coroutine, because Ray would then run all of them on an event
    loop of its own; they run in Ray's threads, and reach the router on its event loop."""

    def __init__(self) -> None:
        self._serving: concurrent.futures.Future[ServingState] = concurrent.futures.Future()

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


def settings_by_model(expected: Mapping[str, ByName[ExpectedWorkers]]) -> dict[str, ExpectedWorkers]:
    return {model: settings_of(workers) for model, workers in expected.items()}
