"""What the supervisor keeps alive: the router and the worker groups, each with its processes.

A member lives through incarnations: `launch` (processes exist and have imported everything), `serve` (they do their
work), `death` (returns when one of them is gone, with the reason), `kill`. A group is one member: when one rank dies,
all of it is started again.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from slipstream.cluster.actors import (
    DecodeRank,
    DecodeWorker,
    Endpoint,
    Listening,
    Place,
    PrefillRank,
    PrefillWorker,
    ProcessHost,
    ServingRouter,
)
from slipstream.cluster.config import ROUTER_CPUS, ClusterConfig
from slipstream.cluster.placement import PoolResources
from slipstream.router.config import RouterConfig
from slipstream.router.messages import Role
from slipstream.workers.config import WorkerConfig
from slipstream.workers.report import WorkerReport

# What a rank's process imports before it knows its configuration. torch alone takes 2 to 4 s.
WORKER_MODULES = ("slipstream.workers.worker",)
ROUTER_MODULES = ("slipstream.router.router",)
STOP_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """What all members share. `log_dir` None: output stays with Ray. Where the cluster `spans_nodes`, loopback
    addresses will not do and are replaced by the nodes' own."""

    config: ClusterConfig
    worker_token: str
    log_dir: Path | None
    spans_nodes: bool

    def log_path(self, name: str) -> str | None:
        return str(self.log_dir / f"{name}.log") if self.log_dir else None

    def host(self, configured: str, node_ip: str) -> str:
        """Where a process on a node listens."""
        is_loopback = configured in ("localhost", "::1") or configured.startswith("127.")
        return node_ip if is_loopback and self.spans_nodes else configured


class Member(Protocol):
    """One incarnation after the other of something that serves."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def pids(self) -> list[int]: ...
    async def launch(self) -> None: ...
    async def death(self) -> str: ...
    async def stop(self) -> None: ...
    def kill(self) -> None: ...


class RouterMember:
    """The router, on the driver's node: that is where the operator looked for a free port, and reads the URL."""

    name = "router"
    role = "router"

    def __init__(self, deployment: Deployment, node_id: str) -> None:
        self._deployment = deployment
        self._node_id = node_id
        self._config: RouterConfig = deployment.config.router
        self._actor: Any = None
        self._run: Any = None
        self._place: Place | None = None

    @property
    def pids(self) -> list[int]:
        return [self._place.pid] if self._place else []

    async def launch(self) -> None:
        self._actor = _start(
            ServingRouter,
            self._deployment,
            self.name,
            {"CPU": ROUTER_CPUS},
            # Soft: a head node that offers no CPUs still gets its router, elsewhere.
            NodeAffinitySchedulingStrategy(self._node_id, soft=True),
        )
        self._place = await self._actor.warm_up.remote(ROUTER_MODULES)

    async def serve(self) -> tuple[Listening, Endpoint]:
        """Listens. Ports that were chosen once stay, so that workers and clients find the next incarnation."""
        assert self._place is not None
        model = self._deployment.config.model
        worker_host = self._deployment.host(self._config.worker_host, self._place.node_ip)
        config = dataclasses.replace(self._config, worker_host=worker_host)
        self._run = self._actor.run.remote(config, model.name, model.path, self._deployment.worker_token)
        listening, run = (asyncio.ensure_future(_result(ref)) for ref in (self._actor.listening.remote(), self._run))
        try:
            await asyncio.wait([listening, run], return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                run.result()  # raises why it does not listen
            addresses: Listening = await listening
        finally:
            listening.cancel()
            run.cancel()
        http = dataclasses.replace(self._config.http, port=addresses.http.port)
        admin = self._config.admin
        if addresses.admin is not None:
            admin = dataclasses.replace(admin, port=addresses.admin.port)
        self._config = dataclasses.replace(self._config, http=http, admin=admin, worker_port=addresses.workers.port)
        return addresses, Endpoint(_reachable(worker_host, self._place.node_ip), addresses.workers.port)

    async def death(self) -> str:
        return await first_death([self._run])

    async def drain(self, deadline_s: float) -> None:
        await self._actor.drain.remote(deadline_s)

    async def stop(self) -> None:
        await _stop(self._actor, [self._run])

    def kill(self) -> None:
        _kill([self._actor])
        self._actor = self._run = self._place = None


class GroupMember:
    """A worker group: rank 0 and, with tensor parallelism, its other ranks, all in one bundle of the pool's
    placement group."""

    def __init__(self, deployment: Deployment, pool: PoolResources, index: int, group: PlacementGroup) -> None:
        self._deployment = deployment
        self._pool = pool
        self._strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        self.name = f"{pool.role}-{index}"
        self._settings = deployment.config.prefill if pool.role == "prefill" else deployment.config.decode
        self._actors: list[Any] = []
        self._runs: list[Any] = []
        self._address: Any = None
        self.places: list[Place] = []

    @property
    def role(self) -> Role:
        return self._pool.role

    @property
    def pids(self) -> list[int]:
        return [place.pid for place in self.places]

    async def launch(self) -> None:
        leader, rank = (PrefillWorker, PrefillRank) if self.role == "prefill" else (DecodeWorker, DecodeRank)
        names = [self.name] + [f"{self.name}.rank{n}" for n in range(1, self._settings.tp)]
        classes = [leader] + [rank] * (self._settings.tp - 1)
        self._actors = [
            _start(cls, self._deployment, name, self._pool.rank, self._strategy)
            for cls, name in zip(classes, names, strict=True)
        ]
        self.places = list(await asyncio.gather(*(actor.warm_up.remote(WORKER_MODULES) for actor in self._actors)))

    async def serve(self, router: Endpoint, ranks_on_host: int) -> None:
        """Loads the model and connects to the router; `report` tells how far it is."""
        leader, *others = self._actors
        config = self._worker_config(router, ranks_on_host)
        # Goes from the leader to the others as a reference, not through here: unpacking it would import torch.
        self._address = leader.prepare.remote(config)
        self._runs = [leader.run.remote(self._address)]
        self._runs += [actor.run.remote(config, n, self._address) for n, actor in enumerate(others, start=1)]

    def redirect(self, router: Endpoint) -> None:
        """The router listens elsewhere. A group that is just being launched will be told when it serves."""
        if self._runs:
            self._actors[0].redirect.remote(router.host, router.port)

    async def report(self) -> WorkerReport:
        report: WorkerReport = await self._actors[0].report.remote(self._address)
        return report

    async def death(self) -> str:
        return await first_death(self._runs)

    async def stop(self) -> None:
        if self._runs:
            await _stop(self._actors[0], self._runs)

    def kill(self) -> None:
        _kill(self._actors)
        self._actors, self._runs, self.places = [], [], []
        self._address = None

    def _worker_config(self, router: Endpoint, ranks_on_host: int) -> WorkerConfig:
        config, node_ip = self._deployment.config, self.places[0].node_ip
        transfer_host = _reachable(self._deployment.host(config.kv_transfer.host, node_ip), node_ip)
        return WorkerConfig(
            name=self.name,
            role=self.role,
            model=config.model.name,
            model_dir=config.model.path,
            router_host=router.host,
            router_port=router.port,
            token=self._deployment.worker_token,
            tp=self._settings.tp,
            max_queued_tokens=self._settings.max_queued_tokens,
            host=self._deployment.host("127.0.0.1", node_ip),
            ranks_on_host=ranks_on_host,
            drain_s=config.drain_timeout_s,
            engine=self._settings.engine,
            transfer=dataclasses.replace(config.kv_transfer, host=transfer_host),
        )


def _reachable(listening: str, node_ip: str) -> str:
    """The address to tell others for what listens there."""
    return node_ip if listening in ("0.0.0.0", "::") else listening


def _start(
    cls: type[ProcessHost], deployment: Deployment, name: str, resources: dict[str, float], strategy: object
) -> Any:
    actor_class: Any = ray.remote(cls)
    return actor_class.options(
        num_cpus=resources.get("CPU", 0.0),
        num_gpus=resources.get("GPU", 0.0),
        scheduling_strategy=strategy,
        max_restarts=0,  # a new incarnation needs new addresses: that is the supervisor's work, not Ray's
        max_concurrency=4,  # `run` holds one thread for ever
    ).remote(name, deployment.log_path(name))


async def first_death(runs: Sequence[Awaitable[object]]) -> str:
    """Waits until the first of some pending `run` calls ends, and says why."""
    waiting = [asyncio.ensure_future(_end_of(run)) for run in runs]
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        # Ranks die of each other's death; the one that has a reason of its own says more than "is gone".
        return min((task.result() for task in done), key=lambda reason: reason.startswith("process"))
    finally:
        for task in waiting:
            task.cancel()


async def _result(reference: Any) -> Any:
    return await reference


async def _end_of(run: Awaitable[object]) -> str:
    try:
        await run
    except RayError as error:
        return reason_of(error)
    return "ended by itself"


def reason_of(error: RayError) -> str:
    """One sentence about why a call into a process failed."""
    if isinstance(error, RayTaskError) and error.cause is not None:
        cause = error.cause
        text = " ".join(str(cause).split()) or type(cause).__name__
        # Our own errors and the operating system's are sentences; others need their type to be understood.
        ours = type(cause).__module__.startswith("slipstream.") or isinstance(cause, OSError)
        return text if ours else f"{type(cause).__name__}: {text}"
    text = " ".join(str(error).split())
    if isinstance(error, RayActorError):
        if "OUT_OF_MEMORY" in text or "running low on memory" in text:
            return "process was killed because the machine ran out of memory"
        if "connection error" in text or "worker process has died" in text:
            return "process is gone (killed, or crashed in native code)"
    return f"process is gone: {text[:300]}"


async def _stop(actor: Any, runs: list[Any]) -> None:
    """Asks to stop and waits for the end of `run`, a little: who does not listen is killed afterwards."""
    try:
        async with asyncio.timeout(STOP_PATIENCE_S):
            await actor.stop.remote()
            await asyncio.gather(*(_end_of(run) for run in runs))
    except (TimeoutError, RayError):
        return


def _kill(actors: list[Any]) -> None:
    for actor in actors:
        if actor is not None:
            ray.kill(actor)
