"""The router as a member of the cluster: its process, and what its next incarnation is to serve."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slipstream.cluster.config.cluster_config import ROUTER_CPUS, ClusterConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.config.settings_by_name import by_name
from slipstream.cluster.state.host_folders import instances_path
from slipstream.cluster.supervisor.members.actor_handles import (
    end_by_force,
    start_actor,
)
from slipstream.cluster.supervisor.members.actors import ProcessLocation, ServingRouter
from slipstream.cluster.supervisor.members.deployment import Deployment, reachable
from slipstream.cluster.supervisor.members.remote_router import RemoteRouter, expected_by_name
from slipstream.cluster.supervisor.members.routed_model import RoutedModel, RoutedText
from slipstream.cluster.supervisor.members.router_settings import RouterSettings
from slipstream.cluster.supervisor.members.standby_router import StandbyRouter
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.process.addresses import Addresses, Endpoint
from slipstream.router.registry.expected_workers import ExpectedWorkers

ROUTER_MODULES = ("slipstream.router.router",)
REPOSITORY_MODULES = ("slipstream.router.tensor_models", "slipstream.router.api.kserve.grpc.grpc_server")


class ClientSocketHolder(Protocol):
    """The socket holder on this node, which keeps what outlives a router."""

    @property
    def path(self) -> Path: ...
    def let_go(self) -> None: ...


class RouterMember(RemoteRouter):
    """The router. It runs on the driver's node, because that is where its port was checked, where the operator reads
    its URL, and where the `holder` of its clients is. If Ray puts the next router on another node, the clients of the
    one before end.

    Each incarnation serves the models that this knows. Methods that take the name of a model raise KeyError if it is
    not among them."""

    name = "router"
    role = "router"

    def __init__(
        self, deployments: Sequence[Deployment], node_id: str, holder: ClientSocketHolder | None = None
    ) -> None:
        """`deployments` has one for each model, or a single one without a model."""
        super().__init__()
        deployment = deployments[0]
        self._deployment = deployment  # for what all models have in common
        self._models = {one.model.name: RoutedModel.of(one) for one in deployments if one.config.has_model}
        self.settings = RouterSettings(deployment.config)
        self._node_id = node_id
        self._holder = holder
        self._standby = StandbyRouter(self._start_standby)
        self._place: ProcessLocation | None = None
        self._is_leaving = False  # it is unready for good
        self._is_ending = False  # it drains for the last time

    def tolerate_failed_models(self) -> None:
        """Models of the repository that cannot be loaded do not end later incarnations."""
        self.settings.tolerate_failed_models()

    def keep_standby(self) -> None:
        """From now on a process waits to be the next router, if the configuration wants it."""
        if self._deployment.config.restart.standby_router:
            self._standby.keep()

    def end_standby(self) -> None:
        """Idempotent."""
        self._standby.end()

    def expect_files(self, model: str, manifests: Sequence[Manifest]) -> None:
        """Those of the versions that are served now: the next incarnation reads no other files of the model."""
        self._models[model] = dataclasses.replace(self._models[model], manifests=tuple(manifests))

    @property
    def pids(self) -> list[int]:
        return [self._place.pid] if self._place else []

    @property
    def host(self) -> str:
        return self._place.node_ip if self._place else ""

    @property
    def node_id(self) -> str:
        """Where it runs or is to run."""
        return self._place.node_id if self._place else self._node_id

    async def launch(self) -> None:
        standby = self._standby.take()
        if standby is not None:
            with contextlib.suppress(RayError):  # it has died, too
                return await self._warm_up(standby)
        # What the first router had reserved, others may have by the time that one which waited has served and died.
        resources = {"CPU": ROUTER_CPUS} if standby is None else {}
        # Soft affinity: if the driver's node offers no CPUs, the router goes elsewhere.
        await self._warm_up(self._start(resources, NodeAffinitySchedulingStrategy(self._node_id, soft=True)))

    async def _warm_up(self, actor: Any) -> None:
        self._actor = actor
        self._place = await actor.warm_up.remote(self._modules)

    def _start(self, resources: dict[str, float], strategy: NodeAffinitySchedulingStrategy) -> Any:
        return start_actor(ServingRouter, self._deployment, self.name, resources, strategy)

    def _start_standby(self) -> Any:
        actor = self._start({}, NodeAffinitySchedulingStrategy(self._node_id, soft=False))
        actor.warm_up.remote(self._modules)
        return actor

    @property
    def _modules(self) -> tuple[str, ...]:
        """What takes long to import."""
        return ROUTER_MODULES + (REPOSITORY_MODULES if self.settings.repository.is_on else ())

    async def serve(self, expected: Mapping[str, ExpectedWorkers]) -> tuple[Addresses, Endpoint]:
        """Starts to listen. Returns the addresses, those of the repository as other nodes reach them, and that for
        workers."""
        assert self._place is not None
        worker_host = self._deployment.host(self.settings.config.worker_host, self._place.node_ip)
        self._run = await self._started(worker_host, expected)
        addresses = await self._listening()
        if self._is_leaving:
            await self._actor.leave.remote()
        self._standby.refill()
        self.settings.listening(addresses)
        if addresses.repository is not None:
            instances = addresses.repository.instances
            reached = Endpoint(reachable(instances.host, self._place.node_ip), instances.port)
            repository = dataclasses.replace(addresses.repository, instances=reached)
            addresses = dataclasses.replace(addresses, repository=repository)
        return addresses, Endpoint(reachable(worker_host, self._place.node_ip), addresses.workers.port)

    async def _started(self, worker_host: str, expected: Mapping[str, ExpectedWorkers]) -> Any:
        """The pending call of `run`."""
        config = self._deployment.config
        return self._actor.run.remote(
            by_name(dataclasses.replace(self.settings.config, worker_host=worker_host)),
            tuple(map(by_name, self._models.values())),
            self._deployment.worker_token,
            expected_by_name(expected),
            by_name(self.settings.repository),
            instances_path(config.name) if self.settings.repository.is_on else None,
            await self._holder_path(),
            self._is_ending,
            config.budget.memory_bytes,
        )

    async def _holder_path(self) -> Path | None:
        """Where the router finds the sockets of the clients. The clients end if it is on another node."""
        assert self._place is not None
        if self._holder is None:
            return None
        if self._place.node_id == self._node_id:
            return self._holder.path
        await asyncio.to_thread(self._holder.let_go)
        return None

    async def _listening(self) -> Addresses:
        """Where the router listens. Raises RayError with the reason if it does not."""
        listening, run = (asyncio.ensure_future(_result(ref)) for ref in (self._actor.listening.remote(), self._run))
        try:
            await asyncio.wait([listening, run], return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                run.result()  # raises
            addresses: Addresses = await listening
        except RayTaskError as error:
            self.settings.failed(error.cause)
            raise
        finally:
            listening.cancel()
            run.cancel()
        return addresses

    async def leave(self) -> None:
        """Makes this and later incarnations unready, so that load balancers send requests elsewhere."""
        self._is_leaving = True
        await self._ask(lambda actor: actor.leave.remote())

    async def drain(self, deadline_s: float) -> None:
        """Lets running requests finish. Neither this nor a later incarnation takes new clients any more."""
        self._is_ending = True
        await self._ask(lambda actor: actor.drain.remote(deadline_s))

    async def add_model(self, deployment: Deployment) -> None:
        """Serves a further model, in this and in later incarnations. Raises ValueError if the model cannot be read,
        ConnectionError if there is no router; then later incarnations do not serve it either."""
        routed = RoutedModel.of(deployment)
        await self._make_read(lambda actor: actor.add_model.remote(by_name(routed)))
        self._models[deployment.model.name] = routed

    async def remove_model(self, model: str, deadline_s: float) -> None:
        """Drains a model: it takes no new requests, and is gone when the running ones have ended, or after `deadline_s`
        seconds. Raises ConnectionError if the router dies."""
        await self._ask(lambda actor: actor.remove_model.remote(model, deadline_s))

    def forget_model(self, model: str) -> None:
        """Later incarnations do not serve this model."""
        self._models.pop(model, None)

    async def set_aliases(self, model: str, aliases: Sequence[str]) -> None:
        """Sets the further names of a model, in this and in later incarnations."""
        self._models[model] = self._models[model].with_aliases(aliases)
        if self._run is not None:
            await self._ask(lambda actor: actor.set_aliases.remote(model, tuple(aliases)))

    async def set_split(self, model: str, split: dict[str, float] | None) -> None:
        """Sets each version's share of new requests, in this and in later incarnations."""
        self._models[model] = self._models[model].with_split(split)
        if self._run is not None:
            await self._ask(lambda actor: actor.set_split.remote(model, split))

    async def add_text(self, model: str, version: str, served: ServedModelConfig, manifest: Manifest) -> None:
        """From now on a version has a text of its own, in this and in later incarnations. Raises ValueError if that
        cannot be read, ConnectionError if there is no router; then nothing has changed."""
        text = RoutedText(version, served, (manifest,))
        await self._make_read(lambda actor: actor.add_text.remote(by_name(text)))
        self._models[model] = self._models[model].with_text(text)

    async def adopt_text(self, model: str, version: str) -> None:
        """Makes the text of a version that of the model, in this and in later incarnations."""
        routed = self._models[model]
        text = routed.text(version)
        if text is None:
            return
        self._models[model] = adopting = routed.adopting(text)
        adopted = dataclasses.replace(text, served=adopting.served)
        await self._ask(lambda actor: actor.adopt_text.remote(by_name(adopted)))

    async def remove_text(self, model: str, version: str) -> None:
        """The version is served no more, in this and in later incarnations."""
        self._models[model] = self._models[model].without_text(version)
        await self._ask(lambda actor: actor.remove_text.remote(model, version))

    async def set_tensor_versions(self, model: str, config: TensorVersionsConfig) -> None:
        """How the requests to a model of the repository are divided between its versions, in this and in later
        incarnations."""
        self.settings.divide_tensor_requests(model, config)
        if self._run is not None:
            await self._ask(lambda actor: actor.set_tensor_versions.remote(model, by_name(config)))

    async def set_instance_counts(self, model: str, config: InstanceCountsConfig) -> None:
        """How many instances a model of the repository has, in this and in later incarnations."""
        self.settings.set_instance_counts(model, config)
        if self._run is not None:
            await self._ask(lambda actor: actor.set_instance_counts.remote(model, by_name(config)))

    async def resize_instances(
        self, model: str, version: str, count: int, reason: str, config: InstanceCountsConfig
    ) -> None:
        """How many instances a version has, as a planner says. Later incarnations begin with `config`."""
        self.settings.set_instance_counts(model, config)
        await self._ask(lambda actor: actor.resize_instances.remote(model, version, count, reason))

    async def follow(self, model: str, config: ClusterConfig) -> None:
        """Makes the router take over the dispatcher's settings for a model, as far as it can. Its next incarnation
        will read the tokenizer from this configuration's model."""
        before = self._models[model]
        now = self._models[model] = before.following(config.model, config.router.dispatch)
        if now.dispatch != before.dispatch and self._run is not None:
            await self._ask(lambda actor: actor.follow.remote(model, by_name(now.dispatch)))

    def kill(self) -> None:
        end_by_force([self._actor])
        self._actor = self._run = self._place = None


async def _result(reference: Any) -> Any:
    return await reference
