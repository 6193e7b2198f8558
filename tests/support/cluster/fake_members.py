"""A supervisor whose members are only pretended: they start, serve and die as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from slipstream.cluster.config.cluster_config import ClusterConfig, RestartConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.ray.bundles import PoolResources
from slipstream.cluster.state.cluster_state import MemberStatus
from slipstream.cluster.supervisor.managed import ManagedGroup
from slipstream.cluster.supervisor.members.actors import ProcessLocation
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.supervisor import Supervisor
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.process.addresses import Addresses, Endpoint, RepositoryAddresses
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.status.instances_status import InstancesStatus
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus
from slipstream.router.status.version_status import VersionStatus
from slipstream.router.status.wanted_models import WantedList, WantedModel
from slipstream.workers.telemetry.worker_report import WorkerReport, WorkerState

MODEL = ""  # of CONFIG, which names none
CONFIG = ClusterConfig(ServedModelConfig("/m"), restart=RestartConfig(backoff_s=0.001, backoff_max_s=0.002))
PATIENCE_S = 20.0


@dataclass
class FakeMember:
    """Lives until `die` is called, again after each launch."""

    name: str
    num_launches: int = 0
    num_kills: int = 0
    is_asked_to_stop: bool = False
    host: str = "here"
    _death: asyncio.Future[str] | None = None

    @property
    def pids(self) -> list[int]:
        return [self.num_launches] if self._death is not None else []

    def begin(self) -> None:
        self.num_launches += 1
        self._death = asyncio.get_running_loop().create_future()

    def die(self, reason: str) -> None:
        assert self._death is not None
        if not self._death.done():
            self._death.set_result(reason)

    async def death(self) -> str:
        assert self._death is not None
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        self.is_asked_to_stop = True
        self.die("stopped")

    def kill(self) -> None:
        self.num_kills += 1
        self._death = None


@dataclass
class FakeRouter(FakeMember):
    name: str = "router"
    role: str = "router"
    told: list[Mapping[str, ExpectedWorkers]] = field(default_factory=list)  # how many workers are wanted
    removed: list[str] = field(default_factory=list)  # models
    drained: list[tuple[str, Role | None, bool]] = field(default_factory=list)
    groups: dict[str, FakeGroup] = field(default_factory=dict)
    left_in: list[int] = field(default_factory=list)  # which of its incarnations were asked to leave
    drained_in: list[int] = field(default_factory=list)  # which of its incarnations were drained themselves
    dies_in_drain: bool = False  # its first incarnation
    knows_workers: bool = True
    num_unanswered: int = 0  # calls of `tensor_versions`
    hangs: bool = False  # its first incarnation
    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    node_id: str = "node"
    instance_ports: list[Endpoint] = field(default_factory=list)  # of its incarnations; empty: there is no repository
    tolerates_failed_models: bool = False
    keeps_standby: bool = False

    def keep_standby(self) -> None:
        self.keeps_standby = True

    def end_standby(self) -> None:
        self.keeps_standby = False

    def tolerate_failed_models(self) -> None:
        self.tolerates_failed_models = True

    @property
    def expected(self) -> list[ExpectedWorkers]:
        """What it was told about the only model."""
        return [expected[MODEL] for expected in self.told]

    async def ping(self) -> None:
        if self.hangs and self.num_launches == 1:
            await self.thawed.wait()

    async def versions(self, model: str) -> tuple[VersionStatus, ...]:
        return ()

    async def signals(self, model: str) -> Signals:
        raise ConnectionError("there is no router")

    async def set_split(self, model: str, split: dict[str, float] | None) -> None: ...
    async def set_mirror(self, model: str, version: str, percent: float | None) -> None: ...
    async def add_text(self, model: str, version: str, served: ServedModelConfig, manifest: Manifest) -> None: ...
    async def adopt_text(self, model: str, version: str) -> None: ...
    async def remove_text(self, model: str, version: str) -> None: ...
    async def follow(self, model: str, config: ClusterConfig) -> None: ...
    def expect_files(self, model: str, manifests: Sequence[Manifest]) -> None: ...
    async def add_model(self, deployment: Deployment) -> None: ...
    async def set_aliases(self, model: str, aliases: Sequence[str]) -> None: ...
    def forget_model(self, model: str) -> None: ...
    async def set_tensor_versions(self, model: str, config: TensorVersionsConfig) -> None: ...
    async def tensor_versions(self, model: str) -> TensorVersionsStatus | None:
        if self.num_unanswered > 0:
            self.num_unanswered -= 1
            raise ConnectionError("there is no router")
        return TensorVersionsStatus(())

    async def set_instance_counts(self, model: str, config: InstanceCountsConfig) -> None: ...
    async def instances_status(self, model: str) -> list[InstancesStatus]:
        return []

    async def wanted_models(self, known: WantedList | None) -> WantedList:
        await asyncio.Event().wait()
        raise AssertionError("nothing is wanted")

    async def wanted_model_served(self, model: WantedModel) -> None: ...
    async def wanted_model_failed(self, model: WantedModel, reason: str) -> None: ...
    async def remove_model(self, model: str, deadline_s: float) -> None:
        self.removed.append(model)

    async def launch(self) -> None:
        self.begin()

    async def serve(self, expected: Mapping[str, ExpectedWorkers]) -> tuple[Addresses, Endpoint]:
        self.told.append(expected)
        port = Endpoint("h", 2)
        if not self.instance_ports:
            return Addresses(Endpoint("h", 1), port), port
        at = self.instance_ports[min(self.num_launches, len(self.instance_ports)) - 1]
        return Addresses(Endpoint("h", 1), port, None, RepositoryAddresses("/path", at)), port

    async def leave(self) -> None:
        self.left_in.append(self.num_launches)
        if self.dies_in_drain and self.num_launches == 1:
            raise ConnectionError("there is no router")

    async def drain(self, deadline_s: float) -> None:
        self.drained_in.append(self.num_launches)
        if self.dies_in_drain and self.num_launches == 1:
            self.die("killed")
            raise ConnectionError("process is gone")

    async def drain_worker(self, name: str, next_role: Role | None, migrate: bool) -> bool:
        self.drained.append((name, next_role, migrate))
        if self.knows_workers:
            self.groups[name].heard(next_role)
        return self.knows_workers

    async def expect_workers(self, expected: Mapping[str, ExpectedWorkers]) -> None:
        self.told.append(expected)

    async def status(self) -> dict[str, Any]:
        return {}


@dataclass
class FakeInstanceHost(FakeMember):
    role: str = "instances"
    served: list[tuple[Endpoint, str]] = field(default_factory=list)

    async def launch(self) -> None:
        self.begin()

    async def serve(self, router: RepositoryAddresses, router_node_id: str) -> None:
        self.served.append((router.instances, router_node_id))

    def cut_off(self) -> None:
        self.die("cut off")


@dataclass
class FakeGroup(FakeMember):
    role: Role = "decode"
    model: str = MODEL
    version: str = ""
    has_room: bool = True
    obeys: bool = True  # when it is asked to drain
    hangs: bool = False  # and says nothing any more
    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    state: WorkerState = "loading"
    served_role: Role = "decode"
    epoch: int = 0
    is_reserved: bool = False
    served_models: list[str] = field(default_factory=list)
    cannot_load: set[str] = field(default_factory=set)
    pool: PoolResources = field(default_factory=lambda: PoolResources("decode", {"CPU": 1}, {"CPU": 1}, 1))
    redirected: list[Endpoint] = field(default_factory=list)
    found_room: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def locations(self) -> Sequence[ProcessLocation]:
        return [ProcessLocation(pid, "node", "here") for pid in self.pids]

    @property
    def node_ids(self) -> Sequence[str]:
        return ["node"]

    def become(self, role: Role) -> None:
        self.role = role

    def adopt(self, deployment: Deployment, pools: Mapping[Role, PoolResources], role: Role) -> None:
        self.model, self.version = deployment.model
        self.role = role

    async def has_left(self) -> bool:
        return await self.death() == "ended by itself"

    async def reserve(self) -> None:
        self.is_reserved = True
        if self.has_room:
            self.found_room.set()

    async def room(self) -> None:
        await self.found_room.wait()

    def release(self) -> None:
        self.is_reserved = False

    async def launch(self) -> None:
        await self.found_room.wait()
        self.begin()

    async def serve(self, router: Endpoint, ranks_on_host: int) -> None:
        self.state, self.served_role = "ready", self.role
        self.epoch += 1
        if self._death is not None and self._death.done():  # the same processes go on
            self._death = asyncio.get_running_loop().create_future()
        self.served_models.append(self.model)
        if self.model in self.cannot_load:
            self.state = "loading"
            self.die(f"{self.model} cannot be loaded")

    def redirect(self, router: Endpoint) -> None:
        self.redirected.append(router)

    async def report(self) -> WorkerReport:
        if self.hangs:
            await self.thawed.wait()
        return WorkerReport(self.name, 0, 1, self.state, self.epoch, "", (("loading", 1.0),), self.served_role)

    def thaw(self) -> None:
        self.hangs = False
        self.thawed.set()

    def cut_off(self) -> None:
        self.die("cut off")

    def heard(self, next_role: Role | None) -> None:
        if not self.obeys:
            self.state = "draining"
        elif next_role is None:
            self.die("ended by itself")
        else:
            self.served_role = next_role
            self.epoch += 1


@dataclass
class Watcher:
    changes: list[tuple[str, str]] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    members: list[MemberStatus] = field(default_factory=list)
    changed_event: asyncio.Event = field(default_factory=asyncio.Event)

    def changed(self, member: MemberStatus, members: list[MemberStatus]) -> None:
        self.changes.append((member.name, member.state))
        self.details.append(member.detail)
        self.members = members
        self.changed_event.set()

    def wants(self, expected: Mapping[str, ExpectedWorkers]) -> None: ...
    def launched(self, member: MemberStatus) -> None: ...

    def listening(self, at: Addresses) -> None: ...


@dataclass
class Scene:
    supervisor: Supervisor
    router: FakeRouter
    watcher: Watcher
    groups: dict[str, FakeGroup]

    def group(self, name: str, role: Role = "decode", **fields: Any) -> FakeGroup:
        made = FakeGroup(name, role=role, **fields)
        self.groups[name] = made
        return made

    def managed(self, name: str) -> ManagedGroup:
        found = self.supervisor.group(name)
        assert found is not None
        return found

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.watcher.changed_event.clear()
                await self.watcher.changed_event.wait()

    def state_of(self, name: str) -> str:
        return self.managed(name).status.state


@asynccontextmanager
async def serving(
    *roles: Role,
    config: ClusterConfig = CONFIG,
    instance_hosts: Sequence[FakeInstanceHost] = (),
    instance_ports: Sequence[Endpoint] = (),
) -> AsyncIterator[Scene]:
    """A deployment with one group a role, up and settled. `instance_ports` are those of the router's incarnations."""
    router, watcher, groups = FakeRouter(instance_ports=list(instance_ports)), Watcher(), {}
    router.groups = groups
    scene = Scene(Supervisor(config, router, watcher, instance_hosts), router, watcher, groups)
    for role in roles:
        scene.group(f"{role}-0", role)
    async with asyncio.timeout(PATIENCE_S):
        await scene.supervisor.start(list(groups.values()))
    scene.supervisor.settle()
    try:
        yield scene
    finally:
        await scene.supervisor.stop()
