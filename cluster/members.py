"""The members that the supervisor keeps alive: the router (here) and the worker groups (in `worker_group`).

A member lives through incarnations: `launch` (processes exist and have imported everything), `serve` (they do their
work), `death` (returns, with the reason, when one of them is gone), `kill`. A group is one member: if one of its ranks
dies, all of them are started again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slipstream.cluster.actors import Place, ProcessHost, ServingRouter
from slipstream.cluster.config import ROUTER_CPUS, ClusterConfig
from slipstream.cluster.placement import PoolResources
from slipstream.cluster.update.changes import live_dispatch
from slipstream.router.addresses import Addresses, Endpoint
from slipstream.router.config import RouterConfig
from slipstream.router.expected_workers import ExpectedWorkers
from slipstream.router.messages import Role
from slipstream.router.signals import Signals
from slipstream.router.version_status import VersionStatus
from slipstream.workers.report import WorkerReport

ROUTER_MODULES = ("slipstream.router.router",)
STOP_PATIENCE_S = 2.0
MAX_PORT_TRIES = 5  # because the last incarnation may still hold its ports for a moment


@dataclass(frozen=True, slots=True)
class Deployment:
    """What all members of a model version share. `log_dir` None: output stays with Ray. If the cluster `spans_nodes`,
    loopback addresses are replaced by those of the nodes."""

    config: ClusterConfig
    worker_token: str
    log_dir: Path | None
    spans_nodes: bool
    version: str = ""

    def log_path(self, name: str) -> str | None:
        return str(self.log_dir / f"{name}.log") if self.log_dir else None

    def host(self, configured: str, node_ip: str) -> str:
        """The address at which a process on a node listens."""
        is_loopback = configured in ("localhost", "::1") or configured.startswith("127.")
        return node_ip if is_loopback and self.spans_nodes else configured


class Member(Protocol):
    """Something that serves, in one incarnation after the other."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def pids(self) -> list[int]: ...
    async def launch(self) -> None: ...
    async def death(self) -> str: ...
    @property
    def host(self) -> str: ...
    async def stop(self) -> None: ...
    def kill(self) -> None: ...


class Group(Member, Protocol):
    """A worker group. Across its incarnations, it holds its Ray resources from `reserve` to `release`."""

    @property
    def role(self) -> Role: ...
    @property
    def version(self) -> str: ...
    @property
    def places(self) -> Sequence[Place]: ...
    @property
    def node_id(self) -> str | None: ...
    @property
    def pool(self) -> PoolResources: ...
    def become(self, role: Role) -> None: ...
    def reserve(self) -> None: ...
    async def room(self) -> None: ...
    def release(self) -> None: ...
    async def serve(self, router: Endpoint, ranks_on_host: int) -> None: ...
    def redirect(self, router: Endpoint) -> None: ...
    async def report(self) -> WorkerReport: ...
    def cut_off(self) -> None: ...


class Router(Member, Protocol):
    """The one router of a cluster. Calls raise OSError while there is none."""

    async def serve(self, expected: ExpectedWorkers) -> tuple[Addresses, Endpoint]: ...
    async def drain(self, deadline_s: float) -> None: ...
    async def drain_worker(self, name: str, next_role: Role | None, migrate: bool) -> bool: ...
    async def expect_workers(self, expected: ExpectedWorkers) -> None: ...
    async def status(self) -> dict[str, Any]: ...
    async def set_split(self, split: dict[str, float] | None) -> None: ...
    async def signals(self) -> Signals: ...
    async def versions(self) -> tuple[VersionStatus, ...]: ...
    async def follow(self, config: ClusterConfig) -> None: ...


class ClientKeeper(Protocol):
    """Has on this node what outlives a router."""

    @property
    def path(self) -> Path: ...
    def let_go(self) -> None: ...


class RouterMember:
    """The router. It runs on the driver's node, because that is where its port was checked, where the operator reads
    its URL, and where the `keeper` of its clients is. If Ray puts the next router on another node, the clients of the
    one before end."""

    name = "router"
    role = "router"

    def __init__(self, deployment: Deployment, node_id: str, keeper: ClientKeeper | None = None) -> None:
        self._deployment = deployment
        self._node_id = node_id
        self._keeper = keeper
        self._config: RouterConfig = deployment.config.router
        self._actor: Any = None
        self._run: Any = None
        self._place: Place | None = None
        self._num_ports_taken = 0  # how many times in a row

    def stay_at(self, http_port: int | None, admin_port: int | None) -> None:
        """The ports that clients know from a router before the first one here."""
        http, admin = self._config.http, self._config.admin
        if http_port is not None:
            http = dataclasses.replace(http, port=http_port)
        if admin_port is not None and admin.port is not None:
            admin = dataclasses.replace(admin, port=admin_port)
        self._config = dataclasses.replace(self._config, http=http, admin=admin)

    @property
    def pids(self) -> list[int]:
        return [self._place.pid] if self._place else []

    @property
    def host(self) -> str:
        return self._place.node_ip if self._place else ""

    async def launch(self) -> None:
        self._actor = start_actor(
            ServingRouter,
            self._deployment,
            self.name,
            {"CPU": ROUTER_CPUS},
            # Soft affinity: if the driver's node offers no CPUs, the router goes elsewhere.
            NodeAffinitySchedulingStrategy(self._node_id, soft=True),
        )
        self._place = await self._actor.warm_up.remote(ROUTER_MODULES)

    async def serve(self, expected: ExpectedWorkers) -> tuple[Addresses, Endpoint]:
        """Starts to listen. Ports stay the same once chosen, so that workers and clients find the next incarnation."""
        assert self._place is not None
        model = self._deployment.config.model
        keeper = None
        if self._keeper is not None and self._place.node_id == self._node_id:
            keeper = self._keeper.path
        elif self._keeper is not None:
            await asyncio.to_thread(self._keeper.let_go)
        worker_host = self._deployment.host(self._config.worker_host, self._place.node_ip)
        config = dataclasses.replace(self._config, worker_host=worker_host)
        self._run = self._actor.run.remote(
            config, model.name, model.path, self._deployment.worker_token, expected, keeper
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
        self._num_ports_taken = 0
        http = dataclasses.replace(self._config.http, port=addresses.http.port)
        admin = self._config.admin
        if addresses.admin is not None:
            admin = dataclasses.replace(admin, port=addresses.admin.port)
        self._config = dataclasses.replace(self._config, http=http, admin=admin, worker_port=addresses.workers.port)
        return addresses, Endpoint(reachable(worker_host, self._place.node_ip), addresses.workers.port)

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

    async def drain(self, deadline_s: float) -> None:
        await self._ask(lambda actor: actor.drain.remote(deadline_s))

    async def drain_worker(self, name: str, next_role: Role | None, migrate: bool) -> bool:
        """Empties a worker, which then ends or comes back in its next role. Returns False if it is not connected."""
        known: bool = await self._ask(lambda actor: actor.drain_worker.remote(name, next_role, migrate))
        return known

    async def expect_workers(self, expected: ExpectedWorkers) -> None:
        """Tells the router how many workers are wanted, connected or not."""
        await self._ask(lambda actor: actor.expect_workers.remote(expected))

    async def set_split(self, split: dict[str, float] | None) -> None:
        """Sets each version's share of new requests, in this and in later incarnations."""
        versions = dataclasses.replace(self._config.dispatch.versions, split=split)
        dispatch = dataclasses.replace(self._config.dispatch, versions=versions)
        self._config = dataclasses.replace(self._config, dispatch=dispatch)
        if self._run is not None:
            await self._ask(lambda actor: actor.set_split.remote(split))

    async def signals(self) -> Signals:
        """The recent load and how well it was served: what a planner decides from."""
        found: Signals = await self._ask(lambda actor: actor.signals.remote())
        return found

    async def versions(self) -> tuple[VersionStatus, ...]:
        """The state and the counts of each version of the model."""
        found: tuple[VersionStatus, ...] = await self._ask(lambda actor: actor.versions.remote())
        return found

    async def follow(self, config: ClusterConfig) -> None:
        """Makes the router take over the dispatcher's settings, as far as it can. Its next incarnation will read the
        tokenizer from this configuration's model."""
        self._deployment = dataclasses.replace(self._deployment, config=config)
        dispatch = live_dispatch(self._config.dispatch, config.router.dispatch)
        if dispatch != self._config.dispatch:
            self._config = dataclasses.replace(self._config, dispatch=dispatch)
            if self._run is not None:
                await self._ask(lambda actor: actor.follow.remote(dispatch))

    async def status(self) -> dict[str, Any]:
        """The contents of `/cluster/status`."""
        status: dict[str, Any] = json.loads(await self._ask(lambda actor: actor.status_body.remote()))
        return status

    async def stop(self) -> None:
        await stop_actor(self._actor, [self._run])

    def kill(self) -> None:
        end_by_force([self._actor])
        self._actor = self._run = self._place = None


def reachable(listening: str, node_ip: str) -> str:
    """The address by which others can reach something that listens at `listening`."""
    return node_ip if listening in ("0.0.0.0", "::") else listening


def start_actor(
    cls: type[ProcessHost], deployment: Deployment, name: str, resources: dict[str, float], strategy: object
) -> Any:
    actor_class: Any = ray.remote(cls)
    return actor_class.options(
        num_cpus=resources.get("CPU", 0.0),
        num_gpus=resources.get("GPU", 0.0),
        resources={kind: amount for kind, amount in resources.items() if kind not in ("CPU", "GPU")},
        scheduling_strategy=strategy,
        max_restarts=0,  # the supervisor restarts it, not Ray, because a new incarnation needs new addresses
        max_concurrency=4,  # `run` occupies one of these threads for ever
    ).remote(name, deployment.log_path(name))


async def first_death(runs: Sequence[Awaitable[object]]) -> str:
    """Waits until the first of some pending `run` calls ends, and says why."""
    waiting = [asyncio.ensure_future(_end_of(run)) for run in runs]
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        # When one rank dies, the others die of that. The one with a reason of its own says more than "is gone".
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
        # Our own errors and those of the operating system are sentences; others are understandable only with their
        # type.
        ours = type(cause).__module__.startswith("slipstream.") or isinstance(cause, OSError)
        return text if ours else f"{type(cause).__name__}: {text}"
    text = " ".join(str(error).split())
    if isinstance(error, RayActorError):
        if "OUT_OF_MEMORY" in text or "running low on memory" in text:
            return "process was killed because the machine ran out of memory"
        if "connection error" in text or "worker process has died" in text:
            return "process is gone (killed, or crashed in native code)"
    return f"process is gone: {text[:300]}"


async def stop_actor(actor: Any, runs: list[Any]) -> None:
    """Asks an actor to stop, and waits a little for the end of its `run`. (If it does not listen, it is killed
    later.)"""
    try:
        async with asyncio.timeout(STOP_PATIENCE_S):
            await actor.stop.remote()
            await asyncio.gather(*(_end_of(run) for run in runs))
    except (TimeoutError, RayError):
        return


def end_by_force(actors: list[Any]) -> None:
    for actor in actors:
        if actor is not None:
            ray.kill(actor)
