"""The router as a member of the cluster: its process, the ports that it keeps, and the calls to it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slipstream.cluster.config.cluster_config import ROUTER_CPUS, ClusterConfig
from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.config.settings_by_name import ByName, by_name
from slipstream.cluster.state.run_state import instances_path, store_folder
from slipstream.cluster.supervisor.members.actor_handles import (
    end_by_force,
    first_death,
    reason_of,
    start_actor,
    stop_actor,
)
from slipstream.cluster.supervisor.members.actors import ProcessLocation, ServingRouter
from slipstream.cluster.supervisor.members.deployment import Deployment, reachable
from slipstream.cluster.supervisor.members.routed_model import RoutedModel, RoutedText
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.process.addresses import Addresses, Endpoint, RepositoryAddresses
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.status.instances_status import InstancesStatus
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.tensor_signals import TensorSignals
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus
from slipstream.router.status.version_status import VersionStatus
from slipstream.router.status.wanted_models import WantedList, WantedModel
from slipstream.router.tls.client_tls import ClientTlsConfig

ROUTER_MODULES = ("slipstream.router.router",)
REPOSITORY_MODULES = ("slipstream.router.tensor_models", "slipstream.router.api.kserve.grpc.grpc_server")
MAX_PORT_TRIES = 5  # because the last incarnation may still hold its ports for a moment


class ClientSocketHolder(Protocol):
    """Has on this node what outlives a router."""

    @property
    def path(self) -> Path: ...
    def let_go(self) -> None: ...


class RouterMember:
    """The router. It runs on the driver's node, because that is where its port was checked, where the operator reads
    its URL, and where the `holder` of its clients is. If Ray puts the next router on another node, the clients of the
    one before end.

    Once it `keeps_standby`, another process has imported the router and waits to be the next one. It reserves nothing,
    so that Ray always has room for it.

    Each incarnation serves the models that this knows. Methods that take the name of a model raise KeyError if it is
    not among them."""

    name = "router"
    role = "router"

    def __init__(
        self, deployments: Sequence[Deployment], node_id: str, holder: ClientSocketHolder | None = None
    ) -> None:
        """`deployments` has one for each model, or a single one without a model."""
        deployment = deployments[0]
        self._deployment = deployment  # for what all models have in common
        self._models = {one.model.name: RoutedModel.of(one) for one in deployments if one.config.has_model}
        self._repository = with_downloads(deployment.config.repository, deployment.config.model_cache)
        self._node_id = node_id
        self._holder = holder
        self._config: RouterConfig = with_store(deployment.config.router, deployment.config.name)
        self._actor: Any = None
        self._standby: Any = None
        self._keeps_standby = False
        self._run: Any = None
        self._place: ProcessLocation | None = None
        self._num_ports_taken = 0  # how many times in a row
        self._is_leaving = False  # it is unready for good
        self._is_ending = False  # it drains for the last time

    def show_admin_api(self, url: str, tls: ClientTlsConfig) -> None:
        """The page for people calls the admin API there, unless the configuration names another; "": there is none."""
        if not self._config.ui.admin_url:
            ui = dataclasses.replace(self._config.ui, admin_url=url, admin_tls=tls)
            self._config = dataclasses.replace(self._config, ui=ui)

    def stay_at(self, http_port: int | None, admin_port: int | None) -> None:
        """The ports that clients know from the router of the previous driver."""
        http, admin = self._config.http, self._config.admin
        if http_port is not None:
            http = dataclasses.replace(http, port=http_port)
        if admin_port is not None and admin.port is not None:
            admin = dataclasses.replace(admin, port=admin_port)
        self._config = dataclasses.replace(self._config, http=http, admin=admin)

    def stay_at_for_tensors(self, grpc_port: int | None, metrics_port: int | None) -> None:
        """The ports of the repository that clients know from the router of the previous driver."""
        grpc, metrics = self._repository.grpc, self._repository.metrics
        if grpc_port is not None and grpc.port is not None:
            grpc = dataclasses.replace(grpc, port=grpc_port)
        if metrics_port is not None and metrics.port is not None:
            metrics = dataclasses.replace(metrics, port=metrics_port)
        self._repository = dataclasses.replace(self._repository, grpc=grpc, metrics=metrics)

    def tolerate_failed_models(self) -> None:
        """Models of the repository that cannot be loaded do not end later incarnations."""
        self._repository = dataclasses.replace(self._repository, exit_on_error=False)

    def keep_standby(self) -> None:
        """From now on a process waits to be the next router, if the configuration wants it."""
        self._keeps_standby = self._deployment.config.restart.standby_router
        self._start_standby()

    def end_standby(self) -> None:
        """Idempotent."""
        self._keeps_standby = False
        end_by_force([self._standby])
        self._standby = None

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
        standby, self._standby = self._standby, None
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

    def _start_standby(self) -> None:
        """Begins to, and waits for nothing."""
        if self._keeps_standby and self._standby is None:
            self._standby = self._start({}, NodeAffinitySchedulingStrategy(self._node_id, soft=False))
            self._standby.warm_up.remote(self._modules)

    @property
    def _modules(self) -> tuple[str, ...]:
        """What takes long to import."""
        return ROUTER_MODULES + (REPOSITORY_MODULES if self._repository.is_on else ())

    async def serve(self, expected: Mapping[str, ExpectedWorkers]) -> tuple[Addresses, Endpoint]:
        """Starts to listen. Ports stay the same once chosen, so that workers and clients find the next incarnation."""
        assert self._place is not None
        holder = None
        if self._holder is not None and self._place.node_id == self._node_id:
            holder = self._holder.path
        elif self._holder is not None:
            await asyncio.to_thread(self._holder.let_go)
        worker_host = self._deployment.host(self._config.worker_host, self._place.node_ip)
        config = dataclasses.replace(self._config, worker_host=worker_host)
        self._run = self._actor.run.remote(
            by_name(config),
            tuple(map(by_name, self._models.values())),
            self._deployment.worker_token,
            _sent(expected),
            by_name(self._repository),
            instances_path(self._deployment.config.name) if self._repository.is_on else None,
            holder,
            self._is_ending,
            self._deployment.config.budget.memory_bytes,
        )
        listening, run = (asyncio.ensure_future(_result(ref)) for ref in (self._actor.listening.remote(), self._run))
        try:
            await asyncio.wait([listening, run], return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                run.result()  # raises the reason why it does not listen
            addresses: Addresses = await listening
        except RayTaskError as error:
            self._note_failure(error.cause)
            raise
        finally:
            listening.cancel()
            run.cancel()
        if self._is_leaving:
            await self._actor.leave.remote()
        self._start_standby()
        self._num_ports_taken = 0
        http = dataclasses.replace(self._config.http, port=addresses.http.port)
        admin = self._config.admin
        if addresses.admin is not None:
            admin = dataclasses.replace(admin, port=addresses.admin.port)
        self._config = dataclasses.replace(self._config, http=http, admin=admin, worker_port=addresses.workers.port)
        if addresses.repository is not None:
            addresses = dataclasses.replace(addresses, repository=self._keep_repository(addresses.repository))
        return addresses, Endpoint(reachable(worker_host, self._place.node_ip), addresses.workers.port)

    def _keep_repository(self, at: RepositoryAddresses) -> RepositoryAddresses:
        """Keeps the ports of the repository for the next incarnation. Returns the addresses as other nodes reach
        them."""
        assert self._place is not None
        self.stay_at_for_tensors(
            at.grpc.port if at.grpc is not None else None, at.metrics.port if at.metrics is not None else None
        )
        self._repository = dataclasses.replace(self._repository, instance_port=at.instances.port)
        host = reachable(at.instances.host, self._place.node_ip)
        return dataclasses.replace(at, instances=Endpoint(host, at.instances.port))

    def _note_failure(self, cause: object) -> None:
        """Counts starts that failed because a port was taken. If a port that was chosen earlier now belongs to somebody
        else, another one has to be chosen in the end."""
        if not (isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE):
            return
        self._num_ports_taken += 1
        if self._num_ports_taken == MAX_PORT_TRIES:
            self._num_ports_taken = 0
            asked = self._deployment.config.router
            http = dataclasses.replace(self._config.http, port=asked.http.port)
            admin = dataclasses.replace(self._config.admin, port=asked.admin.port)
            self._config = dataclasses.replace(self._config, http=http, admin=admin, worker_port=asked.worker_port)
            own, ports = self._repository, self._deployment.config.repository
            self._repository = dataclasses.replace(
                own, grpc=ports.grpc, metrics=ports.metrics, instance_port=ports.instance_port
            )

    async def death(self) -> str:
        return await first_death([self._run])

    async def _ask(self, call: Callable[[Any], Any]) -> Any:
        """The result of a call into the router's process. Raises ConnectionError if there is no router."""
        if self._run is None:
            raise ConnectionError("there is no router")
        try:
            return await call(self._actor)
        except RayError as error:
            raise ConnectionError(reason_of(error)) from error

    async def leave(self) -> None:
        """Makes this and later incarnations unready, so that load balancers send requests elsewhere."""
        self._is_leaving = True
        await self._ask(lambda actor: actor.leave.remote())

    async def drain(self, deadline_s: float) -> None:
        """Lets running requests finish. Neither this nor a later incarnation takes new clients any more."""
        self._is_ending = True
        await self._ask(lambda actor: actor.drain.remote(deadline_s))

    async def drain_worker(self, name: str, next_role: Role | None, migrate: bool) -> bool:
        """Empties a worker, which then ends or comes back in its next role. Returns False if it is not connected."""
        known: bool = await self._ask(lambda actor: actor.drain_worker.remote(name, next_role, migrate))
        return known

    async def expect_workers(self, expected: Mapping[str, ExpectedWorkers]) -> None:
        """Tells the router how many workers of each model are wanted, connected or not."""
        await self._ask(lambda actor: actor.expect_workers.remote(_sent(expected)))

    async def add_model(self, deployment: Deployment) -> None:
        """Serves a further model, in this and in later incarnations. Raises ValueError if the model cannot be read,
        ConnectionError if there is no router; then later incarnations do not serve it either."""
        routed = RoutedModel.of(deployment)
        if self._run is None:
            raise ConnectionError("there is no router")
        try:
            await self._actor.add_model.remote(by_name(routed))
        except RayTaskError as error:
            raise ValueError(reason_of(error)) from error
        except RayError as error:
            raise ConnectionError(reason_of(error)) from error
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
        routed = self._models[model]
        served = dataclasses.replace(routed.served, aliases=tuple(aliases))
        self._models[model] = dataclasses.replace(routed, served=served)
        if self._run is not None:
            await self._ask(lambda actor: actor.set_aliases.remote(model, tuple(aliases)))

    async def set_split(self, model: str, split: dict[str, float] | None) -> None:
        """Sets each version's share of new requests, in this and in later incarnations."""
        self._models[model] = self._models[model].with_split(split)
        if self._run is not None:
            await self._ask(lambda actor: actor.set_split.remote(model, split))

    async def set_mirror(self, model: str, version: str, percent: float | None) -> None:
        """Has so many percent of the requests copied to a version that gets no others; None: ends that. The next
        incarnation copies none before it is asked to."""
        await self._ask(lambda actor: actor.set_mirror.remote(model, version, percent))

    async def add_text(self, model: str, version: str, served: ServedModelConfig, manifest: Manifest) -> None:
        """From now on a version has a text of its own, in this and in later incarnations. Raises ValueError if that
        cannot be read, ConnectionError if there is no router; then nothing has changed."""
        text = RoutedText(version, served, (manifest,))
        if self._run is None:
            raise ConnectionError("there is no router")
        try:
            await self._actor.add_text.remote(by_name(text))
        except RayTaskError as error:
            raise ValueError(reason_of(error)) from error
        except RayError as error:
            raise ConnectionError(reason_of(error)) from error
        self._models[model] = self._models[model].with_text(text)

    async def adopt_text(self, model: str, version: str) -> None:
        """Makes the text of a version that of the model, in this and in later incarnations."""
        routed = self._models[model]
        text = routed.text(version)
        if text is None:
            return
        own = dataclasses.replace(routed.without_text(version), manifests=text.manifests)
        served = dataclasses.replace(text.served, name=routed.served.name, aliases=routed.served.aliases)
        self._models[model] = dataclasses.replace(own, served=served)
        await self._ask(lambda actor: actor.adopt_text.remote(by_name(dataclasses.replace(text, served=served))))

    async def remove_text(self, model: str, version: str) -> None:
        """The version is served no more, in this and in later incarnations."""
        self._models[model] = self._models[model].without_text(version)
        await self._ask(lambda actor: actor.remove_text.remote(model, version))

    async def signals(self, model: str) -> Signals:
        """The recent load of a model and how well it was served: what a planner decides from."""
        found: Signals = await self._ask(lambda actor: actor.signals.remote(model))
        return found

    async def versions(self, model: str) -> tuple[VersionStatus, ...]:
        """The state and the counts of each version of the model."""
        found: tuple[VersionStatus, ...] = await self._ask(lambda actor: actor.versions.remote(model))
        return found

    async def set_tensor_versions(self, model: str, config: TensorVersionsConfig) -> None:
        """How the requests to a model of the repository are divided between its versions, in this and in later
        incarnations."""
        versions = {**self._repository.versions, model: config}
        self._repository = dataclasses.replace(self._repository, versions=versions)
        if self._run is not None:
            await self._ask(lambda actor: actor.set_tensor_versions.remote(model, by_name(config)))

    async def tensor_versions(self, model: str) -> TensorVersionsStatus | None:
        """How the versions of a model of the repository do; None if there is no such model."""
        found: TensorVersionsStatus | None = await self._ask(lambda actor: actor.tensor_versions.remote(model))
        return found

    async def set_instance_counts(self, model: str, config: InstanceCountsConfig) -> None:
        """How many instances a model of the repository has, in this and in later incarnations."""
        instances = {**self._repository.instances, model: config}
        self._repository = dataclasses.replace(self._repository, instances=instances)
        if self._run is not None:
            await self._ask(lambda actor: actor.set_instance_counts.remote(model, by_name(config)))

    async def instances_status(self, model: str) -> list[InstancesStatus]:
        """How many instances the versions of a model of the repository have; "": of all models."""
        found: list[InstancesStatus] = await self._ask(lambda actor: actor.instances_status.remote(model))
        return found

    async def tensor_signals(self) -> list[TensorSignals]:
        """The load of the instances of all models of the repository: what a planner decides from."""
        found: list[TensorSignals] = await self._ask(lambda actor: actor.tensor_signals.remote())
        return found

    async def resize_instances(
        self, model: str, version: str, count: int, reason: str, config: InstanceCountsConfig
    ) -> None:
        """How many instances a version has, as a planner says. Later incarnations begin with `config`."""
        instances = {**self._repository.instances, model: config}
        self._repository = dataclasses.replace(self._repository, instances=instances)
        await self._ask(lambda actor: actor.resize_instances.remote(model, version, count, reason))

    async def wanted_models(self, known: WantedList | None) -> WantedList:
        """The language models that the repository names, once they are others than those that are known."""
        found: WantedList = await self._ask(lambda actor: actor.wanted_models.remote(known))
        return found

    async def wanted_model_served(self, model: WantedModel) -> None:
        await self._ask(lambda actor: actor.wanted_model_served.remote(model))

    async def wanted_model_failed(self, model: WantedModel, reason: str) -> None:
        await self._ask(lambda actor: actor.wanted_model_failed.remote(model, reason))

    async def ping(self) -> None:
        """Returns when the router's event loop has answered."""
        await self._ask(lambda actor: actor.ping.remote())

    async def follow(self, model: str, config: ClusterConfig) -> None:
        """Makes the router take over the dispatcher's settings for a model, as far as it can. Its next incarnation
        will read the tokenizer from this configuration's model."""
        before = self._models[model]
        now = self._models[model] = before.following(config.model, config.router.dispatch)
        if now.dispatch != before.dispatch and self._run is not None:
            await self._ask(lambda actor: actor.follow.remote(model, by_name(now.dispatch)))

    async def status(self) -> dict[str, Any]:
        """The contents of `/cluster/status`."""
        status: dict[str, Any] = json.loads(await self._ask(lambda actor: actor.status_body.remote()))
        return status

    async def stop(self) -> None:
        await stop_actor(self._actor, [self._run])

    def kill(self) -> None:
        end_by_force([self._actor])
        self._actor = self._run = self._place = None


def with_store(config: RouterConfig, name: str) -> RouterConfig:
    """The settings of the router of the cluster with this name: its store is in the cluster's folder by default."""
    folder = store_folder(name)
    if config.store.directory is not None or folder is None:
        return config
    return dataclasses.replace(config, store=dataclasses.replace(config.store, directory=str(folder)))


def with_downloads(config: RepositoryConfig, model_cache: ModelCacheConfig) -> RepositoryConfig:
    """The settings of a repository, with those of downloads that only the cluster's models have."""
    return dataclasses.replace(
        config,
        download_folder=config.download_folder or model_cache.path,
        download_max_gib=config.download_max_gib or model_cache.max_gib,
    )


async def _result(reference: Any) -> Any:
    return await reference


def _sent(expected: Mapping[str, ExpectedWorkers]) -> dict[str, ByName[ExpectedWorkers]]:
    return {model: by_name(workers) for model, workers in expected.items()}
