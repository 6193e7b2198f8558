"""Instance hosts as members of a cluster."""

from __future__ import annotations

import asyncio

import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig, RestartConfig
from slipstream.cluster.supervisor.instance_host_nodes import free_node
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.process.addresses import Endpoint
from tests.support.cluster.fake_members import FakeInstanceHost, Scene, serving

PORT, OTHER_PORT = Endpoint("h", 3), Endpoint("elsewhere", 3)
CONFIG = ClusterConfig(
    repository=RepositoryConfig(("/repository",)), restart=RestartConfig(backoff_s=0.001, backoff_max_s=0.002)
)


def state_of(scene: Scene, name: str) -> str:
    return next(member.state for member in scene.supervisor.members if member.name == name)


async def until_served(scene: Scene, host: FakeInstanceHost, count: int) -> None:
    await scene.until(lambda: len(host.served) == count and state_of(scene, host.name) == "ready")


def test_a_cluster_with_a_repository_alone_has_a_router_and_an_instance_host() -> None:
    async def run() -> None:
        host = FakeInstanceHost("instances-0")
        async with serving(config=CONFIG, instance_hosts=[host], instance_ports=[PORT]) as scene:
            assert [(one.name, one.state) for one in scene.supervisor.members] == [
                ("router", "ready"),
                ("instances-0", "ready"),
            ]
            assert host.served == [(PORT, "node")]
            assert scene.supervisor.expected == {}

    asyncio.run(run())


def test_an_instance_host_that_dies_is_started_again() -> None:
    async def run() -> None:
        host = FakeInstanceHost("instances-0")
        async with serving(config=CONFIG, instance_hosts=[host], instance_ports=[PORT]) as scene:
            host.die("killed")
            await until_served(scene, host, 2)
            assert next(one.restarts for one in scene.supervisor.members if one.name == "instances-0") == 1

    asyncio.run(run())


def test_an_instance_host_stays_when_the_router_comes_back_at_its_port() -> None:
    async def run() -> None:
        host = FakeInstanceHost("instances-0")
        async with serving(config=CONFIG, instance_hosts=[host], instance_ports=[PORT, PORT]) as scene:
            scene.router.die("killed")
            await scene.until(lambda: scene.router.num_launches == 2 and state_of(scene, "router") == "ready")
            assert (host.num_launches, state_of(scene, "instances-0")) == (1, "ready")

    asyncio.run(run())


def test_an_instance_host_begins_anew_when_the_router_comes_back_elsewhere() -> None:
    async def run() -> None:
        host = FakeInstanceHost("instances-0")
        async with serving(config=CONFIG, instance_hosts=[host], instance_ports=[PORT, OTHER_PORT]) as scene:
            scene.router.die("its node is gone")
            await until_served(scene, host, 2)
            assert host.served[1] == (OTHER_PORT, "node")

    asyncio.run(run())


def test_instance_hosts_are_asked_to_end_with_the_cluster() -> None:
    async def run() -> None:
        host = FakeInstanceHost("instances-0")
        async with serving(config=CONFIG, instance_hosts=[host], instance_ports=[PORT]):
            assert not host.is_asked_to_stop
        assert host.is_asked_to_stop

    asyncio.run(run())


def test_a_model_that_fails_later_does_not_end_a_cluster_that_has_served() -> None:
    async def run() -> None:
        async with serving(config=CONFIG, instance_ports=[PORT]) as scene:
            assert scene.router.tolerates_failed_models
            assert scene.router.keeps_standby

    asyncio.run(run())


@pytest.mark.parametrize(
    ("taken", "is_with_router", "expected"),
    [
        (set(), True, "b"),
        (set(), False, "a"),
        ({"a"}, False, "c"),
        ({"a", "c"}, False, "b"),  # a node has died
    ],
)
def test_each_instance_host_has_a_node_of_its_own_while_there_are_enough(
    taken: set[str | None], is_with_router: bool, expected: str
) -> None:
    assert free_node(["a", "b", "c"], "b", taken, is_with_router=is_with_router) == expected
