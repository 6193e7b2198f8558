"""Ray's own autoscaler brings nodes when worker groups find no room, and takes them away when they stand empty:
whether somebody has scaled by hand, or the planner wants more workers than there are nodes for.

Its nodes are those of Ray's fake provider: processes on the head's host. Nothing of this project knows of that.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

from tests.hosts.conftest import SETTINGS
from tests.support.e2e.observation import wait_until_at_rest
from tests.support.hosts.host_network import Network
from tests.support.hosts.hosts_load import Load, ask, client_of
from tests.support.hosts.ray_hosts import HostsCluster, RayHosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def node_type(resource: str) -> dict[str, Any]:
    resources = {"CPU": 1, resource: 1, "object_store_memory": 80 << 20}
    return {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": 3}


AUTOSCALER: dict[str, Any] = {
    "cluster_name": "fake",
    "max_workers": 6,
    "upscaling_speed": 10.0,
    "idle_timeout_minutes": 0.1,
    "provider": {
        # By "fake_multinode" Ray would look for a file of defaults that its wheel does not have.
        "type": "external",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "use_node_id_as_ip": True,  # all nodes have one address
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
        "launch_multiple": True,
        "head_node_id": FAKE_HEAD_NODE_ID,
    },
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "prefill": node_type("prefill_host"),
        "decode": node_type("decode_host"),
    },
    "head_node_type": "ray.head.default",
    **{key: {} for key in ("auth", "docker", "file_mounts")},
    **{
        key: []
        for key in (
            *("initialization_commands", "setup_commands", "cluster_synced_files", "rsync_exclude", "rsync_filter"),
            *("head_setup_commands", "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands"),
        )
    },
    "file_mounts_sync_continuously": False,
}


GROWING: dict[str, Any] = {
    **SETTINGS,
    "name": "growing",
    "kv_transfer": {},
    "prefill": {"resources": {"prefill_host": 1}},
    "decode": {"resources": {"decode_host": 1}},
}
# One sequence at a time on a decode worker: with more clients than that, requests wait longer than the level allows.
PLANNED: dict[str, Any] = {
    **GROWING,
    "name": "planned",
    "router": {"dispatch": {**SETTINGS["router"]["dispatch"], "slo": {"ttft_ms": 300, "itl_ms": 500}}},
    "decode": {**GROWING["decode"], "engine": {"max_num_seqs": 1}},
    "planner": {
        "enabled": True,
        "max_workers": 3,
        "min_prefill": 1,
        "max_prefill": 1,
        "interval_s": 1,
        "settle_s": 2,
        "start_s": 20,
        "horizon_s": 15,
    },
}


@contextmanager
def from_one_host(network: Network, settings: dict[str, Any]) -> Iterator[tuple[RayHosts, HostsCluster]]:
    """A cluster on a Ray that has only a head when it is asked to serve."""
    with RayHosts(network, head=f"{settings['name']}-head", autoscaler=AUTOSCALER) as hosts:
        hosts.wait_for_hosts(1)
        with HostsCluster(hosts, settings) as serving:
            yield hosts, serving


@pytest.fixture
def growing(network: Network) -> Iterator[tuple[RayHosts, HostsCluster]]:
    with from_one_host(network, GROWING) as cluster:
        yield cluster


@pytest.fixture
def planned(network: Network) -> Iterator[tuple[RayHosts, HostsCluster]]:
    with from_one_host(network, PLANNED) as cluster:
        yield cluster


def scale(serving: HostsCluster, role: str, replicas: int) -> None:
    state = serving.state
    assert state is not None
    request = urllib.request.Request(
        f"{state.operator_url}/v1/fleet/scale",
        json.dumps({"role": role, "replicas": replicas}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {state.operator_token}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 202


def test_nodes_come_for_groups_without_room_and_go_when_they_are_empty(growing: tuple[RayHosts, HostsCluster]) -> None:
    hosts, serving = growing
    hosts.wait_for_hosts(3)
    with client_of(serving) as client:
        expected = [ask(client, variant, f"undisturbed {variant}") for variant in range(8)]
    with Load(serving) as load:
        load.wait_for_answers(4)
        scale(serving, "decode", 2)
        hosts.wait_for_hosts(4)
        serving.wait_for(lambda: is_ready(serving, "decode-1"), 100)
        load.wait_for_answers(8)
        scale(serving, "decode", 1)
        hosts.wait_for_hosts(3)
        load.wait_for_answers(8)
    load.check(expected)
    wait_until_at_rest(serving)


def test_a_node_comes_for_the_worker_that_the_planner_adds_under_load_and_goes_with_it(
    planned: tuple[RayHosts, HostsCluster],
) -> None:
    hosts, serving = planned
    hosts.wait_for_hosts(3)
    with client_of(serving) as client:
        expected = [ask(client, variant, f"undisturbed {variant}") for variant in range(8)]
    assert changes(serving) == []
    with Load(serving, num_clients=12) as load:
        serving.wait_for(lambda: is_ready(serving, "decode-1"), 150)
        hosts.wait_for_hosts(4)
        load.wait_for_answers(24)
    load.check(expected)
    (added,) = changes(serving)
    assert added["reason"] in ("slo", "goodput"), added
    hosts.wait_for_hosts(3)  # there are no more requests
    taken_back, _ = changes(serving)
    assert taken_back["reason"] == "cheaper", taken_back
    wait_until_at_rest(serving)


def changes(serving: HostsCluster) -> list[dict[str, Any]]:
    """What the planner has changed, the latest first."""
    state = serving.state
    assert state is not None
    request = urllib.request.Request(
        f"{state.operator_url}/v1/planner/decisions?changes=true",
        headers={"Authorization": f"Bearer {state.operator_token}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["decisions"]
    return found


def is_ready(serving: HostsCluster, name: str) -> bool:
    state = serving.state
    return state is not None and any(m.name == name and m.state == "ready" for m in state.members)
