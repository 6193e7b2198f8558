"""A tensor-parallel group over several hosts is placed, restarted and scaled as one.

The tests follow one another on the same hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.hosts.conftest import SETTINGS
from tests.hosts.test_autoscaler import scale
from tests.support.e2e.observation import Scrape, wait_until_at_rest
from tests.support.e2e.reference import Reference
from tests.support.e2e.serving_cluster import DEMO_MODEL
from tests.support.e2e.streams import prompt_of
from tests.support.hosts.host_network import Network
from tests.support.hosts.hosts_load import SIZES, Load, ask, client_of
from tests.support.hosts.ray_hosts import HostsCluster, RayHosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RACKS = {"a-1": "a", "a-2": "a", "b-1": "b", "b-2": "b"}
WIDE: dict[str, Any] = {
    **SETTINGS,
    "name": "wide",
    "prefill": {"tp": 2, "hosts_per_group": 2, "hosts_share_label": "rack", "resources": {"prefill_host": 1}},
    "decode": {"resources": {"decode_host": 1}},
}


def add_prefill_host(hosts: RayHosts, name: str) -> None:
    hosts.add(name, labels={"rack": RACKS[name]}, resources={"prefill_host": 1})


@pytest.fixture(scope="module")
def wide(network: Network) -> Iterator[tuple[RayHosts, HostsCluster]]:
    """Two racks of two hosts with room for a rank each, and a host that decodes."""
    with RayHosts(network, head="wide-head") as hosts:
        for name in RACKS:
            add_prefill_host(hosts, name)
        hosts.add("wide-decode", resources={"decode_host": 1})
        hosts.wait_for_hosts(2 + len(RACKS))
        with HostsCluster(hosts, WIDE) as serving:
            yield hosts, serving


@pytest.fixture(scope="module")
def expected(wide: tuple[RayHosts, HostsCluster]) -> list[str]:
    with client_of(wide[1]) as client:
        return [ask(client, variant, f"undisturbed {variant}") for variant in range(2 * len(SIZES))]


def hosts_of(hosts: RayHosts, serving: HostsCluster, member: str) -> list[str]:
    """By rank."""
    where = {pid: host.name for host in hosts.network.hosts.values() for pid in host.pids()}
    return [where[pid] for pid in serving.member(member).pids if pid in where]


def state_of(serving: HostsCluster, member: str) -> str | None:
    state = serving.state
    return next((one.state for one in state.members if one.name == member), None) if state is not None else None


def test_the_ranks_are_on_hosts_of_their_own_that_share_the_label(
    wide: tuple[RayHosts, HostsCluster], expected: list[str]
) -> None:
    hosts, serving = wide
    names = hosts_of(hosts, serving, "prefill-0")
    assert len(set(names)) == 2
    assert len({RACKS[name] for name in names}) == 1
    reference = Reference(DEMO_MODEL)
    for variant in range(3):
        num_prompt_tokens, num_output_tokens = SIZES[variant]
        assert expected[variant] == reference.text(prompt_of(num_prompt_tokens, variant), num_output_tokens)
    assert Scrape.of(serving).value("slipstream:transfers_total") > 0
    wait_until_at_rest(serving)


@pytest.mark.parametrize("rank", [1, 0])
def test_a_host_that_dies_moves_the_whole_group_to_hosts_that_have_room_for_it(
    wide: tuple[RayHosts, HostsCluster], expected: list[str], rank: int
) -> None:
    hosts, serving = wide
    before, pids = hosts_of(hosts, serving, "prefill-0"), serving.member("prefill-0").pids
    with Load(serving) as load:
        load.wait_for_answers(4)
        hosts.network.hosts[before[rank]].kill()
        serving.wait_for(lambda: state_of(serving, "prefill-0") != "ready", 60)
        serving.wait_for(lambda: state_of(serving, "prefill-0") == "ready", 100)
        load.wait_for_answers(8)
    load.check(expected)
    after = hosts_of(hosts, serving, "prefill-0")
    assert {RACKS[name] for name in after} == {"a", "b"} - {RACKS[name] for name in before}
    assert len(set(after)) == 2
    left = hosts.network.hosts[before[1 - rank]]
    assert not set(pids) & set(left.pids())
    wait_until_at_rest(serving)
    add_prefill_host(hosts, before[rank])
    hosts.wait_for_hosts(2 + len(RACKS))


def test_scaling_adds_and_removes_whole_groups_and_none_starts_by_halves(
    wide: tuple[RayHosts, HostsCluster], expected: list[str]
) -> None:
    hosts, serving = wide
    first = hosts_of(hosts, serving, "prefill-0")
    free = next(name for name in RACKS if name not in first)
    hosts.network.hosts[free].kill()
    hosts.wait_for_hosts(1 + len(RACKS))
    with Load(serving) as load:
        scale(serving, "prefill", 2)
        serving.wait_for(lambda: state_of(serving, "prefill-1") == "pending", 60)
        assert "prefill_host" in serving.member("prefill-1").detail
        assert serving.member("prefill-1").pids == []
        add_prefill_host(hosts, free)
        serving.wait_for(lambda: state_of(serving, "prefill-1") == "ready", 100)
        assert len({*first, *hosts_of(hosts, serving, "prefill-1")}) == len(RACKS)
        pids = serving.member("prefill-1").pids
        load.wait_for_answers(8)
        scale(serving, "prefill", 1)
        serving.wait_for(lambda: state_of(serving, "prefill-1") is None, 60)
        load.wait_for_answers(4)
    load.check(expected)
    assert not set(pids) & {pid for host in hosts.network.hosts.values() for pid in host.pids()}
    wait_until_at_rest(serving)
