"""The fleet of a running cluster: the worker groups of all its models, with a supervisor and its processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

import ray

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.fleet.fleet_port import FleetError, FleetState
from slipstream.cluster.fleet.model_fleet import Moved
from slipstream.cluster.ray.bundles import PoolResources, Resources, pool_resources, sum_of
from slipstream.cluster.ray.node_choice import NodeLoad, choose_node
from slipstream.cluster.ray.ray_session import RaySession
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.one_model_fleet import OneModelFleet, is_changing, member_of
from slipstream.cluster.supervisor.supervisor import Supervisor
from slipstream.router.protocol.messages import Role


class ClusterFleet:
    """Has a fleet for each model (`ModelFleet`). Names groups, and says which node they should preferably go to."""

    def __init__(
        self,
        supervisor: Supervisor,
        deployments: Sequence[Deployment],
        session: RaySession,
        budget: BudgetConfig | None = None,
        num_ranks: int | None = None,
    ) -> None:
        """`deployments` has the first version of each model. The GPUs are shared by `num_ranks` ranks; None: by those
        of each model alone. Raises CannotPlace."""
        self._supervisor = supervisor
        self._session = session
        self._budget = budget or BudgetConfig()
        self._num_ranks = num_ranks
        self._models: dict[str, OneModelFleet] = {}
        for deployment in deployments:
            self.add_model(deployment)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._models)

    @property
    def held(self) -> frozenset[str]:
        """The models that are being updated."""
        return frozenset(name for name, fleet in self._models.items() if fleet.is_held)

    def add_model(self, deployment: Deployment) -> OneModelFleet:
        """The fleet of a further model, without groups. Raises CannotPlace."""
        fleet = OneModelFleet(self._supervisor, deployment, self)
        self._models[fleet.model] = fleet
        return fleet

    def forget_model(self, model: str) -> None:
        self._models.pop(model, None)

    def of_model(self, model: str) -> OneModelFleet:
        """Raises FleetError if there is no such model."""
        fleet = self._models.get(model)
        if fleet is None:
            raise FleetError("unknown", "model", f"there is no model {model!r}; there are: {', '.join(self._models)}")
        return fleet

    def of_worker(self, name: str) -> OneModelFleet:
        """The fleet that a group belongs to. Raises FleetError if there is no such group."""
        managed = self._supervisor.group(name)
        if managed is None:
            names = ", ".join(one.status.name for one in self._supervisor.groups) or "none"
            raise FleetError("unknown", "name", f"there is no worker {name!r}; there are: {names}")
        return self.of_model(managed.member.model)

    def state(self) -> FleetState:
        """The groups of all models together."""
        groups, expected = self._supervisor.groups, self._supervisor.expected.values()
        is_held = bool(self.held)
        bundles = [bundle for fleet in self._models.values() for bundle in fleet.bundles]
        return FleetState(
            members=tuple(map(member_of, groups)),
            num_prefill=sum(workers.num_prefill for workers in expected),
            num_decode=sum(workers.num_decode for workers in expected),
            max_members=self._num_fitting(bundles),
            is_changing=is_held or any(map(is_changing, groups)),
            is_held=is_held,
        )

    async def move(self, name: str, model: str, role: Role) -> Moved:
        """Drains a group that serves; then its processes load the other model. Raises FleetError."""
        leaves, joins, managed = self.of_worker(name), self.of_model(model), self._supervisor.group(name)
        assert managed is not None
        leaves.check_not_held("name")
        joins.check_not_held("model")
        if leaves is joins:
            raise FleetError("conflict", "model", f"{name} serves {model} already")
        if managed.pending_change is not None or managed.status.state != "ready":
            raise FleetError(
                "conflict", "name", f"{name} is {managed.status.state}; only a worker that serves can move"
            )
        why_new = await joins.adopt(managed, role)
        if not why_new:
            return Moved(name)
        await leaves.remove(name)
        (added,) = await joins.add(role)
        return Moved(added, why_new)

    def pools_of(self, config: ClusterConfig) -> dict[Role, PoolResources]:
        """What the pools of a model reserve. Raises CannotPlace."""
        pools = pool_resources(config, self._session.resources.get("GPU", 0.0), self._num_ranks)
        return {pool.role: pool for pool in pools}

    def new_names(self, role: Role, count: int, taken: Collection[str]) -> list[str]:
        """Names that no group of any model has, and that are not `taken`."""
        taken = {*taken, *(managed.status.name for managed in self._supervisor.groups)}
        free = (name for n in itertools.count() if (name := f"{role}-{n}") not in taken)
        return list(itertools.islice(free, count))

    def choose_node(self, pool: PoolResources) -> str | None:
        if self._session.is_own or pool.num_hosts > 1:
            return None  # there is one, or Ray chooses several
        groups = [managed.member for managed in self._supervisor.groups]
        nodes = [
            NodeLoad(
                node_id=node["NodeID"],
                labels=node.get("Labels", {}),
                resources=node["Resources"],
                taken=sum_of([group.pool.bundle for group in groups if node["NodeID"] in group.node_ids]),
                num_replicas=sum(node["NodeID"] in group.node_ids and group.role == pool.role for group in groups),
                num_groups=sum(node["NodeID"] in group.node_ids for group in groups),
            )
            for node in ray.nodes()  # type: ignore[no-untyped-call]
            if node["Alive"]
        ]
        return choose_node(nodes, pool.bundle, pool.labels)

    def max_members(self, model: str, bundles: Sequence[Resources]) -> int | None:
        """How many groups of a model could be there beside those of the others; None: not known. `bundles` are what its
        groups reserve."""
        most = self._num_fitting(bundles)
        num_others = sum(managed.member.model != model for managed in self._supervisor.groups)
        return None if most is None else max(0, most - num_others)

    @property
    def num_free(self) -> int | None:
        """How many further groups `budget.workers` allows; None: any number."""
        most = self._budget.workers
        wanted = sum(managed.is_wanted for managed in self._supervisor.groups)
        return None if most is None else max(0, most - wanted)

    @property
    def num_free_gpus(self) -> int | None:
        """How many GPUs further groups may reserve; None: that is not known. A Ray of our own has those of this
        machine."""
        limits = [] if self._budget.gpus is None else [self._budget.gpus]
        if self._session.is_own:
            limits.append(self._session.resources.get("GPU", 0.0))
        wanted = [managed.member for managed in self._supervisor.groups if managed.is_wanted]
        reserved = sum(member.pool.of_group.get("GPU", 0.0) for member in wanted)
        return max(0, math.floor(min(limits) - reserved)) if limits else None

    def check_budget(self, count: int, num_gpus: float) -> None:
        """Raises FleetError if so many further groups, with so many GPUs in all, would be more than `budget.workers` or
        `budget.gpus`."""
        wanted = [managed.member for managed in self._supervisor.groups if managed.is_wanted]
        gpus, gpus_now = self._budget.gpus, sum(member.pool.of_group.get("GPU", 0.0) for member in wanted)
        if gpus is not None and gpus_now + num_gpus > gpus:
            reason = f"budget.gpus is {gpus:g}, and {gpus_now:g} are reserved; {num_gpus:g} more do not fit"
            raise FleetError("conflict", "replicas", reason)
        most, num_now = self._budget.workers, len(wanted)
        if most is not None and num_now + count > most:
            reason = (
                f"budget.workers is {most}, and {num_now} workers are there or on their way; {count} more do not fit"
            )
            raise FleetError("conflict", "replicas", reason)

    def _num_fitting(self, bundles: Sequence[Resources]) -> int | None:
        """How many groups of the largest of these bundles fit, as far as the machine and the budget say. The machine
        says it only for a Ray of our own, which does not grow."""
        limits = [] if self._budget.workers is None else [self._budget.workers]
        if self._session.is_own:
            kinds = {kind for bundle in bundles for kind in bundle}
            largest = {kind: max(bundle.get(kind, 0.0) for bundle in bundles) for kind in kinds}
            there = self._session.resources
            limits += [int(there.get(kind, 0.0) / amount) for kind, amount in largest.items() if amount]
        return min(limits, default=None)
