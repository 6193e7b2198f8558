"""A worker group as a member of the cluster: its Ray resources, the processes of its ranks, and the calls to them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from slipstream.cluster.config.settings_by_name import by_name
from slipstream.cluster.ray.bundles import PoolResources
from slipstream.cluster.supervisor.members.actor_handles import (
    end_by_force,
    first_death,
    have_ended,
    start_actor,
    stop_actor,
)
from slipstream.cluster.supervisor.members.actors import (
    DecodeRank,
    DecodeWorker,
    PrefillRank,
    PrefillWorker,
    ProcessLocation,
)
from slipstream.cluster.supervisor.members.deployment import Deployment, reachable
from slipstream.router.process.addresses import Endpoint
from slipstream.router.protocol.messages import Role
from slipstream.workers.config.worker_config import RoleSettings, WorkerConfig
from slipstream.workers.telemetry.worker_report import WorkerReport

# What a rank's process imports before it knows its configuration. torch alone takes 2 to 4 s.
WORKER_MODULES = ("slipstream.workers.worker",)

NODE_LABEL = "ray.io/node-id"  # which Ray gives to each of its nodes

HOSTS_CHECK_S = 1.0  # while a group starts

NodeChoice = Callable[[PoolResources], str | None]


class GroupMember:
    """Rank 0 and, with tensor parallelism, the other ranks, all in one placement group. Where the group has several
    hosts, the placement group has a bundle on each, for as many ranks; Ray has room for all of them or for none.

    `choose_node` returns the preferred node for a group of one host; Ray takes another one if it has to.
    """

    def __init__(
        self,
        deployment: Deployment,
        name: str,
        role: Role,
        pools: Mapping[Role, PoolResources],
        choose_node: NodeChoice,
    ) -> None:
        self._deployment = deployment
        self.name = name
        self._role = role
        self._pools = pools
        self._choose_node = choose_node
        self._reserved: PoolResources | None = None
        self._room: PlacementGroup | None = None
        self._wished_node: str | None = None
        self._actors: list[Any] = []
        self._runs: list[Any] = []
        self._address: Any = None
        self.locations: list[ProcessLocation] = []

    @property
    def role(self) -> Role:
        return self._role

    @property
    def model(self) -> str:
        return self._deployment.model.name

    @property
    def version(self) -> str:
        return self._deployment.version

    @property
    def pids(self) -> list[int]:
        return [place.pid for place in self.locations]

    @property
    def host(self) -> str:
        return self.locations[0].node_ip if self.locations else ""

    @property
    def node_ids(self) -> Sequence[str]:
        """The nodes that the group is on, or the one that it should go to; none: Ray decides."""
        if self.locations:
            return tuple(dict.fromkeys(place.node_id for place in self.locations))
        return () if self._wished_node is None else (self._wished_node,)

    @property
    def pool(self) -> PoolResources:
        """What the group reserves."""
        return self._pools[self._role]

    def become(self, role: Role) -> None:
        """Changes the role from the next launch on. (A running group hears of it from the router.)"""
        self._role = role

    def adopt(self, deployment: Deployment, pools: Mapping[Role, PoolResources], role: Role) -> None:
        """Makes this a group of another model, which it serves from the next call of `serve` on."""
        self._deployment, self._pools, self._role = deployment, pools, role

    async def has_left(self) -> bool:
        """Whether all ranks have ended in good order, so that the same processes can `serve` again. Waits a moment for
        the last of them."""
        return await have_ended(self._runs)

    def reserve(self) -> None:
        """Asks Ray for room, unless the group already has suitable room. If there is none, Ray's autoscaler adds a
        node."""
        pool = self.pool
        if self._reserved is not None and self._reserved.fills_same_room_as(pool) and not self._has_lost_hosts():
            return
        self.release()
        self._wished_node = self._choose_node(pool)
        on_nodes = {NODE_LABEL: "STRICT_PACK" if pool.num_hosts == 1 else "STRICT_SPREAD"}
        self._room = placement_group(
            [dict(pool.bundle) for _ in range(pool.num_hosts)],
            topology_strategy=on_nodes | ({pool.shared_label: "STRICT_PACK"} if pool.shared_label else {}),
            _soft_target_node_id=self._wished_node,
            bundle_label_selector=[dict(pool.labels)] * pool.num_hosts if pool.labels else None,
        )
        self._reserved = pool

    async def room(self) -> None:
        """Returns when Ray has found room."""
        assert self._room is not None
        await self._room.ready()

    def release(self) -> None:
        """Gives the room back, or stops waiting for it."""
        if self._room is not None:
            remove_placement_group(self._room)
        self._room = self._reserved = self._wished_node = None

    def _has_lost_hosts(self) -> bool:
        """Whether a host of a group of several is gone. Ray looks for another one beside those that are left, which
        with a shared label may be in vain while other hosts have room for the whole group."""
        if self._room is None or self.pool.num_hosts == 1:
            return False
        return bool(placement_group_table(self._room)["state"] == "RESCHEDULING")

    async def launch(self) -> None:
        """Starts the processes, after waiting for room if there is none, anew with other room if hosts of it are lost
        meanwhile."""
        starting = asyncio.ensure_future(self._start())
        try:
            while not (await asyncio.wait([starting], timeout=HOSTS_CHECK_S))[0]:
                if self._has_lost_hosts():
                    starting.cancel()
                    self.kill()
                    self.reserve()
                    starting = asyncio.ensure_future(self._start())
            await starting
        finally:
            starting.cancel()

    async def _start(self) -> None:
        leader, rank = (PrefillWorker, PrefillRank) if self.role == "prefill" else (DecodeWorker, DecodeRank)
        tp, num_hosts = self._settings(self._role).tp, self.pool.num_hosts
        names = [self.name] + [f"{self.name}.rank{n}" for n in range(1, tp)]
        classes = [leader] + [rank] * (tp - 1)
        assert self._room is not None
        on_hosts = [PlacementGroupSchedulingStrategy(self._room, n) for n in range(num_hosts)]
        self._actors = [
            start_actor(cls, self._deployment, name, self.pool.rank, on_hosts[n * num_hosts // tp])
            for n, (cls, name) in enumerate(zip(classes, names, strict=True))
        ]
        self.locations = list(await asyncio.gather(*(actor.warm_up.remote(WORKER_MODULES) for actor in self._actors)))

    async def serve(self, router: Endpoint, ranks_on_host: int) -> None:
        """Lets the ranks load the model and connect to the router; `report` tells how far they are."""
        leader, *others = self._actors
        configs = [by_name(self._worker_config(router, ranks_on_host, place.node_ip)) for place in self.locations]
        # Goes from the leader to the others as a reference, not through here: unpacking it would import torch.
        self._address = leader.prepare.remote(configs[0])
        self._runs = [leader.run.remote(self._address)]
        self._runs += [actor.run.remote(configs[n], n, self._address) for n, actor in enumerate(others, start=1)]

    def redirect(self, router: Endpoint) -> None:
        """The router listens elsewhere now. (A group that is just being launched gets the address when it begins to
        serve.)"""
        if self._runs:
            self._actors[0].redirect.remote(router.host, router.port)

    async def report(self) -> WorkerReport:
        report: WorkerReport = await self._actors[0].report.remote(self._address)
        return report

    async def death(self) -> str:
        return await first_death(self._runs)

    async def stop(self) -> None:
        if self._runs:
            await stop_actor(self._actors[0], self._runs)

    def cut_off(self) -> None:
        """Kills the group's processes; `death` then returns."""
        end_by_force(self._actors)

    def kill(self) -> None:
        end_by_force(self._actors)
        self._actors, self._runs, self.locations = [], [], []
        self._address = None

    def _settings(self, role: Role) -> Any:
        config = self._deployment.config
        return config.prefill if role == "prefill" else config.decode

    def _worker_config(self, router: Endpoint, ranks_on_host: int, node_ip: str) -> WorkerConfig:
        """For the rank at this address."""
        config = self._deployment.config
        transfer_host = reachable(self._deployment.host(config.kv_transfer.host, node_ip), node_ip)
        settings = self._settings(self._role)
        other = self._settings("decode" if self._role == "prefill" else "prefill")
        return WorkerConfig(
            name=self.name,
            role=self._role,
            model=config.model.name,
            model_version=self._deployment.version,
            manifest=self._deployment.manifest,
            model_dir=config.model.path,
            router_host=router.host,
            router_port=router.port,
            token=self._deployment.worker_token,
            router_tls=config.router.worker_tls,
            tp=settings.tp,
            max_queued_tokens=settings.max_queued_tokens,
            host=self._deployment.host("127.0.0.1", node_ip),
            ranks_on_host=ranks_on_host,
            drain_s=config.drain_timeout_s,
            engine=settings.engine,
            other_role=RoleSettings(other.max_queued_tokens, other.engine),
            transfer=dataclasses.replace(config.kv_transfer, host=transfer_host),
            kv_budget_bytes=config.budget.memory_bytes,
            weight_memory_bytes=config.model_cache.memory_bytes,
            trust_remote_code=config.model.trust_remote_code,
        )
