"""A worker group as a member of the cluster: its Ray resources, the processes of its ranks, and the calls to them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

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
from slipstream.cluster.supervisor.members.group_room import GroupRoom, NodeChoice
from slipstream.router.process.addresses import Endpoint
from slipstream.router.protocol.messages import Role
from slipstream.workers.config.worker_config import RoleSettings, WorkerConfig
from slipstream.workers.telemetry.worker_report import WorkerReport

# What a rank's process imports before it knows its configuration. torch alone takes 2 to 4 s.
WORKER_MODULES = ("slipstream.workers.worker",)

HOSTS_CHECK_S = 1.0  # while a group starts


class GroupMember:
    """Rank 0 and, with tensor parallelism, the other ranks, all in one room. Where the group has several hosts, each
    has as many of the ranks."""

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
        self._room = GroupRoom(choose_node)
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
        preferred = self._room.preferred_node
        return () if preferred is None else (preferred,)

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

    async def reserve(self) -> None:
        """Asks Ray for room, unless the group already has suitable room."""
        await self._room.reserve(self.pool)

    async def room(self) -> None:
        """Returns when Ray has found room."""
        await self._room.found()

    def release(self) -> None:
        """Gives the room back, or stops waiting for it."""
        self._room.release()

    async def launch(self) -> None:
        """Starts the processes, after waiting for room if there is none, anew with other room if hosts of it are lost
        meanwhile."""
        starting = asyncio.ensure_future(self._start())
        try:
            while not (await asyncio.wait([starting], timeout=HOSTS_CHECK_S))[0]:
                if await self._room.has_lost_hosts() and not starting.done():
                    starting.cancel()
                    self.kill()
                    await self.reserve()
                    starting = asyncio.ensure_future(self._start())
            await starting
        finally:
            starting.cancel()

    async def _start(self) -> None:
        leader, rank = (PrefillWorker, PrefillRank) if self.role == "prefill" else (DecodeWorker, DecodeRank)
        tp, on_hosts = self._settings(self._role).tp, self._room.on_hosts()
        names = [self.name] + [f"{self.name}.rank{n}" for n in range(1, tp)]
        classes = [leader] + [rank] * (tp - 1)
        self._actors = [
            start_actor(cls, self._deployment, name, self.pool.rank, on_hosts[n * len(on_hosts) // tp])
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
