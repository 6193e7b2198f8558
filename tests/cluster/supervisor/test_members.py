"""How the death of a process is put into one sentence, and at which addresses processes listen."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from slipstream.cluster.config.cluster_config import ROUTER_CPUS, ClusterConfig, RestartConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.config.settings_by_name import ByName, settings_of
from slipstream.cluster.ray.bundles import pool_resources
from slipstream.cluster.supervisor.members import router_member, standby_router
from slipstream.cluster.supervisor.members.actor_handles import first_death, reason_of
from slipstream.cluster.supervisor.members.actors import ProcessLocation
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.members.group_member import GroupMember
from slipstream.cluster.supervisor.members.model_sources import source_of
from slipstream.cluster.supervisor.members.routed_model import RoutedModel
from slipstream.cluster.supervisor.members.router_member import RouterMember
from slipstream.cluster.supervisor.members.router_settings import MAX_PORT_TRIES
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.process.addresses import Addresses, Endpoint
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.workers.telemetry.worker_report import WorkerFailed


def task_error(cause: Exception) -> RayTaskError:
    return RayTaskError("run", "a long traceback\n of many lines", cause)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (task_error(WorkerFailed("the model cannot\nbe loaded")), "the model cannot be loaded"),
        (task_error(OSError(98, "Address already in use")), "[Errno 98] Address already in use"),
        (task_error(KeyError("layers")), "KeyError: 'layers'"),
        (task_error(MemoryError()), "MemoryError: MemoryError"),
        (
            RayActorError(error_msg="its worker process has died. Worker exit type: SYSTEM_ERROR"),
            "process is gone (killed, or crashed in native code)",
        ),
        (
            RayActorError(error_msg="Worker exit type: NODE_OUT_OF_MEMORY: the node running low on memory"),
            "process was killed because the machine ran out of memory",
        ),
        (
            ActorUnavailableError("RpcError: recvmsg: Connection reset", None),
            "the connection of Ray's driver to the process broke",
        ),
        (RayActorError(error_msg="something\nnew"), "process is gone: something new"),
    ],
)
def test_a_reason_is_one_sentence(error: RayError, sentence: str) -> None:
    assert reason_of(error) == sentence


class RouterProcess:
    """An actor's handle: listens at the ports that it is given, at its own choice where that is 0, unless the worker
    port is taken."""

    def __init__(self, taken: set[int], chosen: int) -> None:
        self._taken = taken
        self._chosen = chosen
        self._listens: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
        self.keeper: object = None
        self.is_ending: object = None
        self.drain = SimpleNamespace(remote=self.drained)

    async def drained(self, deadline_s: float) -> None:
        pass

    @property
    def warm_up(self) -> RouterProcess:
        return self

    @property
    def run(self) -> RouterProcess:
        return self

    @property
    def listening(self) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda: self._listens)

    def remote(self, sent: ByName[RouterConfig], *rest: object) -> asyncio.Future[None]:
        config = settings_of(sent)
        run: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        *_, self.keeper, self.is_ending, _ = rest
        if config.worker_port in self._taken:
            run.set_exception(task_error(OSError(errno.EADDRINUSE, "the port is in use")))
        else:
            workers = Endpoint("127.0.0.1", config.worker_port or self._chosen)
            self._listens.set_result(Addresses(Endpoint("127.0.0.1", config.http.port), workers))
        return run


def test_a_router_whose_port_somebody_else_has_taken_tries_it_for_a_while_and_then_takes_another() -> None:
    deployment = Deployment(ClusterConfig(model=ServedModelConfig(path="/m")), "token", None, spans_nodes=False)
    router: Any = RouterMember([deployment], "node")
    router._place = ProcessLocation(1, "node", "127.0.0.1")

    async def serve(taken: set[int], chosen: int) -> int:
        router._actor = RouterProcess(taken, chosen)
        _, workers = await router.serve({"": ExpectedWorkers()})
        port: int = workers.port
        return port

    async def check() -> None:
        assert await serve(set(), 5001) == 5001
        assert await serve(set(), 5002) == 5001  # where the workers look for it
        for _ in range(MAX_PORT_TRIES):
            with pytest.raises(RayTaskError):
                await serve({5001}, 5003)
        assert await serve({5001}, 5004) == 5004

    asyncio.run(check())


class ClientSocketHolder:
    path = Path("/keeper")
    num_let_go = 0

    def let_go(self) -> None:
        self.num_let_go += 1


def test_the_router_gets_the_weight_of_each_model() -> None:
    config = ClusterConfig(model=ServedModelConfig(path="/m", name="m"))
    deployment = Deployment(config, "token", None, spans_nodes=False, weight=3.0)
    assert source_of(RoutedModel.of(deployment), ExpectedWorkers()).weight == 3.0


def test_clients_of_a_router_end_where_the_next_one_is_on_another_node() -> None:
    deployment = Deployment(ClusterConfig(model=ServedModelConfig(path="/m")), "token", None, spans_nodes=False)
    holder = ClientSocketHolder()
    router: Any = RouterMember([deployment], "node", holder)

    async def served_on(node: str) -> object:
        router._place, router._actor = ProcessLocation(1, node, "127.0.0.1"), RouterProcess(set(), 5001)
        await router.serve({"": ExpectedWorkers()})
        return router._actor.keeper

    async def check() -> None:
        assert (await served_on("node"), holder.num_let_go) == (holder.path, 0)
        assert (await served_on("other"), holder.num_let_go) == (None, 1)
        assert (await served_on("node"), holder.num_let_go) == (holder.path, 1)

    asyncio.run(check())


def test_the_router_after_one_that_was_killed_while_it_drained_takes_no_new_clients() -> None:
    deployment = Deployment(ClusterConfig(model=ServedModelConfig(path="/m")), "token", None, spans_nodes=False)
    router: Any = RouterMember([deployment], "node", ClientSocketHolder())

    async def is_served_ending() -> object:
        router._place, router._actor = ProcessLocation(1, "node", "127.0.0.1"), RouterProcess(set(), 5001)
        await router.serve({"": ExpectedWorkers()})
        return router._actor.is_ending

    async def check() -> None:
        assert await is_served_ending() is False
        await router.drain(1.0)
        assert await is_served_ending() is True

    asyncio.run(check())


def test_a_router_that_is_not_there_or_dies_meanwhile_is_no_connection() -> None:
    deployment = Deployment(ClusterConfig(model=ServedModelConfig(path="/m")), "token", None, spans_nodes=False)
    router: Any = RouterMember([deployment], "node")

    async def dies() -> None:
        raise RayActorError(error_msg="its worker process has died")

    async def check() -> None:
        with pytest.raises(ConnectionError, match="there is no router"):
            await router.versions("")
        router._actor = SimpleNamespace(signals=SimpleNamespace(remote=lambda model: dies()))
        router._run = object()
        with pytest.raises(ConnectionError, match=r"process is gone \(killed"):
            await router.signals("")

    asyncio.run(check())


class StartedActor:
    """An actor's handle that `started_actors` has noted. It warms up unless it `is_dead`."""

    def __init__(self, pid: int, resources: dict[str, float], strategy: Any) -> None:
        self.resources = resources
        self.is_bound_to_node = not strategy.soft
        self.is_dead = False
        self.warm_up = SimpleNamespace(remote=self._warm_up)
        self._place = ProcessLocation(pid, "node", "127.0.0.1")

    def _warm_up(self, modules: object) -> asyncio.Future[ProcessLocation]:
        place: asyncio.Future[ProcessLocation] = asyncio.get_running_loop().create_future()
        if self.is_dead:
            place.set_exception(RayActorError(error_msg="its worker process has died"))
            place.exception()
        else:
            place.set_result(self._place)
        return place


@pytest.fixture
def started_actors(monkeypatch: pytest.MonkeyPatch) -> list[StartedActor]:
    """The actors that the router's member starts, in place of Ray."""
    started: list[StartedActor] = []

    def start(cls: object, deployment: object, name: str, resources: dict[str, float], strategy: object) -> object:
        started.append(StartedActor(len(started), resources, strategy))
        return started[-1]

    monkeypatch.setattr(router_member, "start_actor", start)
    for module in (router_member, standby_router):
        monkeypatch.setattr(module, "end_by_force", lambda actors: None)
    return started


def member_with(restart: RestartConfig) -> RouterMember:
    config = ClusterConfig(model=ServedModelConfig(path="/m"), restart=restart)
    return RouterMember([Deployment(config, "token", None, spans_nodes=False)], "ab" * 28)  # a node of Ray


def test_the_next_router_is_the_process_that_waits_for_that(started_actors: list[StartedActor]) -> None:
    async def check() -> None:
        router = member_with(RestartConfig())
        await router.launch()
        router.keep_standby()
        assert router.pids == [0]
        assert [one.resources for one in started_actors] == [{"CPU": ROUTER_CPUS}, {}]
        assert started_actors[1].is_bound_to_node
        router.kill()
        await router.launch()
        assert (router.pids, len(started_actors)) == ([1], 2)

    asyncio.run(check())


def test_a_router_is_started_anew_if_the_process_that_waits_has_died(started_actors: list[StartedActor]) -> None:
    async def check() -> None:
        router = member_with(RestartConfig())
        await router.launch()
        router.keep_standby()
        started_actors[1].is_dead = True
        router.kill()
        await router.launch()
        assert router.pids == [2]
        assert started_actors[2].resources == {}  # others may have what the first router had

    asyncio.run(check())


def test_no_process_waits_where_none_is_wanted_or_the_cluster_ends(started_actors: list[StartedActor]) -> None:
    async def check() -> None:
        unwanted = member_with(RestartConfig(standby_router=False))
        unwanted.keep_standby()
        assert started_actors == []
        ends = member_with(RestartConfig())
        ends.keep_standby()
        ends.end_standby()
        await ends.launch()
        assert ends.pids == [1]

    asyncio.run(check())


def test_of_ranks_that_die_together_the_one_with_a_reason_speaks() -> None:
    async def gone() -> None:
        raise RayActorError(error_msg="its worker process has died")

    async def failed() -> None:
        raise task_error(WorkerFailed("out of memory"))

    async def orphaned() -> None:
        raise task_error(WorkerFailed("rank 1 of decode-0: the leader is gone: the connection is closed"))

    async def fails_later() -> None:
        await asyncio.sleep(0.01)
        await failed()

    async def lives() -> None:
        await asyncio.Event().wait()

    async def check() -> None:
        assert await first_death([gone(), failed(), lives()]) == "out of memory"
        assert await first_death([gone(), fails_later(), lives()]) == "out of memory"
        assert await first_death([orphaned(), fails_later(), lives()]) == "out of memory"
        assert await first_death([lives(), gone()]) == "process is gone (killed, or crashed in native code)"

    asyncio.run(check())


@pytest.mark.parametrize(
    ("spans_nodes", "configured", "host"),
    [
        (False, "127.0.0.1", "127.0.0.1"),
        (False, "0.0.0.0", "0.0.0.0"),
        (True, "127.0.0.1", "10.0.0.7"),
        (True, "::1", "10.0.0.7"),
        (True, "localhost", "10.0.0.7"),
        (True, "0.0.0.0", "0.0.0.0"),
        (True, "192.168.1.1", "192.168.1.1"),
    ],
)
def test_loopback_gives_way_to_the_address_of_the_node_when_there_are_others(
    spans_nodes: bool, configured: str, host: str
) -> None:
    deployment = Deployment(ClusterConfig(model=ServedModelConfig("/m")), "secret", None, spans_nodes)
    assert deployment.host(configured, "10.0.0.7") == host


@pytest.mark.parametrize(
    ("spans_nodes", "configured", "expected"),
    [
        (False, "127.0.0.1", "127.0.0.1"),
        (True, "127.0.0.1", "10.0.0.7"),
        (False, "0.0.0.0", "10.0.0.7"),
        (True, "::", "10.0.0.7"),
        (True, "192.168.1.1", "192.168.1.1"),
    ],
)
def test_peers_get_an_address_for_pages_that_they_can_reach(spans_nodes: bool, configured: str, expected: str) -> None:
    config = ClusterConfig(model=ServedModelConfig("/m"), kv_transfer=TransferConfig(host=configured))
    pools = {pool.role: pool for pool in pool_resources(config, num_gpus=0)}
    deployment = Deployment(config, "secret", None, spans_nodes)
    member = GroupMember(deployment, "prefill-0", "prefill", pools, lambda pool: None)
    assert member._worker_config(Endpoint("10.0.0.1", 1234), 1, "10.0.0.7").transfer.host == expected
