"""The worker groups of one model of a running cluster."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.fleet.fleet_port import CHANGING, FleetError, FleetMember, FleetState, MemberState
from slipstream.cluster.ray.bundles import PoolResources, Resources
from slipstream.cluster.repository.files_watch import VersionFiles
from slipstream.cluster.supervisor.managed import ManagedGroup
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.members.group_member import GroupMember
from slipstream.cluster.supervisor.members.members import Group
from slipstream.cluster.supervisor.supervisor import Supervisor
from slipstream.router.model_files.file_digest import DigestCache
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.expected_workers import ExpectedWorkers

# The states of groups that do not serve yet, in the order in which such groups are given up first.
LOSABLE: tuple[MemberState, ...] = (
    "failed",
    "pending",
    "dead",
    "new",
    "starting",
    "freeing",
    "gathering",
    "fetching",
    "loading",
    "warming_up",
    "connecting",
)

# Some settings cannot change after a worker's start, because they determine what is in its memory. Of these, the ones
# that make a difference to requests must be the same in both pools, or workers cannot change between them.
FELT = ("quantization", "device", "cpu_kernels", "prefix_caching")


class Site(Protocol):
    """What the fleets of all models share: names of groups, nodes, and the budget."""

    def pools_of(self, config: ClusterConfig) -> dict[Role, PoolResources]:
        """What the pools of a model reserve. Raises CannotPlace."""

    def new_names(self, role: Role, count: int, taken: Collection[str]) -> list[str]:
        """Names that no group of any model has, and that are not `taken`."""

    def choose_node(self, pool: PoolResources) -> str | None: ...
    def max_members(self, model: str, bundles: Sequence[Resources]) -> int | None:
        """How many groups of a model could be there beside those of the others; None: not known. `bundles` are what its
        groups reserve."""

    def check_budget(self, count: int, num_gpus: float) -> None:
        """Raises FleetError if so many further groups, with so many GPUs in all, would be more than the configuration
        allows."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelVersion:
    """What groups of one version of the model are made from."""

    deployment: Deployment
    pools: dict[Role, PoolResources]


class OneModelFleet:
    """The view of one model of a cluster (`VersionedFleet`): its groups alone, and all that is done to them. The newest
    version is the one that was added last."""

    def __init__(self, supervisor: Supervisor, deployment: Deployment, site: Site) -> None:
        """`deployment` is the first version. Raises CannotPlace."""
        self.model = deployment.model.name
        self._supervisor = supervisor
        self._first = deployment
        self._site = site
        self._versions: dict[str, ModelVersion] = {}
        self.is_held = False  # set while an update is under way, when no other caller may resize
        self._cache = DigestCache.of_user()
        self.add_version(deployment.version, deployment.config, deployment.manifest)

    def add_version(self, version: str, config: ClusterConfig, manifest: Manifest | None) -> None:
        """Makes this the version of new groups, unless another one is asked for. Raises CannotPlace."""
        pools = self._site.pools_of(config)
        deployment = dataclasses.replace(self._first, config=config, version=version, manifest=manifest)
        self._versions.pop(version, None)
        self._versions[version] = ModelVersion(deployment, pools)

    def forget_version(self, version: str) -> None:
        """Makes no more groups of a version. Raises FleetError if there still are some, or if it is the only
        version."""
        if any(managed.member.version == version for managed in self._groups()):
            raise FleetError("conflict", "version", f"workers of version {version!r} are still there")
        if list(self._versions) == [version]:
            raise FleetError("conflict", "version", f"{version!r} is the only version")
        self._versions.pop(version, None)

    def files(self) -> dict[str, VersionFiles]:
        """The files that the groups of each version are made from."""
        deployments = {version: made_from.deployment for version, made_from in self._versions.items()}
        return {
            version: VersionFiles(Path(one.config.model.path), one.manifest)
            for version, one in deployments.items()
            if one.manifest is not None
        }

    @property
    def newest(self) -> str:
        return next(reversed(self._versions))

    @property
    def bundles(self) -> list[Resources]:
        """What a group of each role reserves, in the newest version."""
        return [pool.of_group for pool in self._versions[self.newest].pools.values()]

    def state(self) -> FleetState:
        groups = self._groups()
        expected = self._supervisor.expected.get(self.model, ExpectedWorkers(0, 0))  # it may have been removed
        return FleetState(
            members=tuple(map(member_of, groups)),
            num_prefill=expected.num_prefill,
            num_decode=expected.num_decode,
            max_members=self._site.max_members(self.model, self.bundles),
            is_changing=self.is_held or any(map(is_changing, groups)),
            is_held=self.is_held,
        )

    async def add(self, role: Role, count: int = 1, version: str | None = None) -> list[str]:
        """Adds groups. Those that find no room wait for it, which Ray's autoscaler notices. Raises FleetError if the
        files of their version are others now, so that no group could load them."""
        if count < 1:
            raise FleetError("invalid", "count", f"count must be at least 1, got {count}")
        self._check_stays()
        version = self.newest if version is None else version
        await self._check_files(version)
        groups = self.make(role, count, version)
        await self._supervisor.add(groups)
        return [group.name for group in groups]

    async def remove(self, name: str, *, migrate: bool = True) -> None:
        """Drains a group and ends it. Does nothing if it is leaving already."""
        managed = self._managed(name)
        if not managed.is_leaving:
            self.check_not_held("name")
            await self._supervisor.remove(managed, migrate=migrate)

    async def retire(self, name: str) -> None:
        """Does what `remove` does, for the update that holds the fleet."""
        managed = self._managed(name)
        if not managed.is_leaving:
            await self._supervisor.remove(managed, migrate=True)

    async def switch_role(self, name: str, role: Role) -> None:
        """Changes a group's role. Does nothing if it has that role already."""
        managed = self._managed(name)
        self.check_not_held("name")
        if managed.is_leaving:
            raise FleetError("conflict", "name", f"{name} is leaving the cluster")
        if managed.status.state == "failed":
            raise FleetError("conflict", "name", f"{name} could not be started: {managed.status.detail}")
        if managed.member.role == role:
            return
        if managed.pending_change is not None:
            raise FleetError("conflict", "name", f"{name} is on its way to another role already; wait until it serves")
        reason = cannot_switch(self._versions[managed.member.version].deployment.config)
        if reason is not None:
            raise FleetError("conflict", "role", f"{name} cannot become a {role} worker: {reason}")
        await self._supervisor.switch(managed, role)

    async def scale(self, role: Role, replicas: int) -> None:
        """Grows or shrinks a pool. Groups that do not serve yet are removed first, then those that have served for the
        shortest time."""
        if replicas < 0:
            raise FleetError("invalid", "replicas", f"replicas must not be negative, got {replicas}")
        self.check_not_held("replicas")
        wanted = [managed for managed in self._groups() if managed.is_wanted and managed.member.role == role]
        if replicas > len(wanted):
            num_new = replicas - len(wanted)
            self._site.check_budget(num_new, num_new * self._versions[self.newest].pools[role].of_group.get("GPU", 0.0))
            await self.add(role, num_new)
            return
        for managed in sorted(wanted, key=_worth)[: len(wanted) - replicas]:
            await self._supervisor.remove(managed, migrate=True)

    def make(self, role: Role, count: int, version: str, taken: Collection[str] = ()) -> list[Group]:
        """New groups with names that no group has and that are not `taken`. Raises FleetError for an unknown
        version."""
        made_from = self._versions.get(version)
        if made_from is None:
            raise FleetError("unknown", "version", f"there is no version {version!r}")
        return [
            GroupMember(made_from.deployment, name, role, made_from.pools, self._site.choose_node)
            for name in self._site.new_names(role, count, taken)
        ]

    async def adopt(self, managed: ManagedGroup, role: Role) -> str:
        """Makes a group of another model, which serves, one of this model. Returns why it cannot be one, and then
        nothing has been done; "" if it will be. Raises FleetError if no group could serve this model now."""
        self._check_stays()
        await self._check_files(self.newest)
        self._check_stays()
        made_from, name = self._versions[self.newest], managed.status.name
        if managed.pending_change is not None or managed.status.state != "ready":  # since that was begun
            raise FleetError(
                "conflict", "name", f"{name} is {managed.status.state}; only a worker that serves can move"
            )
        ours, theirs = made_from.pools[role], managed.member.pool
        if ours.rank != theirs.rank or not ours.fills_same_room_as(theirs):
            return f"a {role} worker of {self.model} needs {ours.words}, and {name} has {theirs.words}"
        config, num_ranks = made_from.deployment.config, len(managed.member.locations)
        tp = (config.prefill if role == "prefill" else config.decode).tp
        if tp != num_ranks:
            return f"a {role} worker of {self.model} has {tp} ranks, and {name} has {num_ranks}"
        await self._supervisor.move(managed, made_from.deployment, made_from.pools, role)
        return ""

    async def _check_files(self, version: str) -> None:
        files = self.files().get(version)
        if files is None:
            return
        difference = await asyncio.to_thread(files.manifest.difference, files.model_dir, self._cache)
        if difference is not None:
            reason = f"no worker of version {version} can be started: {difference}"
            raise FleetError("conflict", "version", reason)

    def _check_stays(self) -> None:
        if self._supervisor.is_leaving(self.model):
            raise FleetError("conflict", "model", f"{self.model} is being removed")

    def check_not_held(self, field: str) -> None:
        """Raises FleetError while an update is under way."""
        if self.is_held:
            raise FleetError("conflict", field, "an update is under way; `slipstream update` shows how far it is")

    def _managed(self, name: str) -> ManagedGroup:
        managed = next((one for one in self._groups() if one.status.name == name), None)
        if managed is None:
            names = ", ".join(one.status.name for one in self._groups()) or "none"
            raise FleetError("unknown", "name", f"there is no worker {name!r}; there are: {names}")
        return managed

    def _groups(self) -> list[ManagedGroup]:
        return [managed for managed in self._supervisor.groups if managed.member.model == self.model]


def cannot_switch(config: ClusterConfig) -> str | None:
    """Why workers of this configuration cannot change their role; None if they can.

    What differs between the pools and lies in a worker's memory (`kv_cache_mib`, `num_pages`, `num_threads`) stays as
    it was loaded; step size, sequences, queued tokens and niceness are those of the new role.
    """
    ours, theirs = config.prefill, config.decode
    for key in ("tp", "hosts_per_group", "hosts_share_label", "num_gpus", "resources", "labels"):
        if getattr(ours, key) != getattr(theirs, key):
            return f"{key} is {getattr(ours, key)} for prefill and {getattr(theirs, key)} for decode"
    for key in FELT:
        if getattr(ours.engine, key) != getattr(theirs.engine, key):
            one, other = getattr(ours.engine, key), getattr(theirs.engine, key)
            return f"engine.{key} is {one} for prefill and {other} for decode, which takes a new start"
    return None


def _worth(managed: ManagedGroup) -> tuple[int, float]:
    state = managed.status.state
    return (LOSABLE.index(state) if state in LOSABLE else len(LOSABLE), -managed.since_s)


def member_of(managed: ManagedGroup) -> FleetMember:
    status = managed.status
    return FleetMember(
        name=status.name,
        role=managed.member.role,
        state=status.state,
        since_s=managed.since_s,
        host=status.host,
        version=managed.member.version,
        detail=status.detail,
        is_leaving=managed.is_leaving,
        startup_s=tuple(status.startup_s),
        model=managed.member.model,
    )


def is_changing(managed: ManagedGroup) -> bool:
    return managed.pending_change is not None or managed.status.state in CHANGING
