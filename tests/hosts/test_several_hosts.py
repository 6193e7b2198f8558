"""A cluster over several hosts, of which some die or are cut off: no request is lost, no page stays reserved.

The tests follow one another on the same hosts, and each leaves them as it found them.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.e2e.observation import Scrape, moved, status_of, wait_until_at_rest, wait_until_clear
from tests.support.e2e.reference import Reference
from tests.support.e2e.serving_cluster import DEMO_MODEL
from tests.support.e2e.streams import prompt_of
from tests.support.hosts.host_network import Host, Network
from tests.support.hosts.hosts_load import SIZES, Load, ask, client_of
from tests.support.hosts.ray_hosts import HostsCluster, RayHosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def expected(serving: HostsCluster) -> list[str]:
    """What the undisturbed cluster says, by variant."""
    with client_of(serving) as client:
        return [ask(client, variant, f"undisturbed {variant}") for variant in range(2 * len(SIZES))]


def host_of(serving: HostsCluster, ray_hosts: RayHosts, member: str) -> Host:
    (pid,) = serving.member(member).pids
    return next(host for host in ray_hosts.network.hosts.values() if pid in host.pids())


def transfers(serving: HostsCluster) -> float:
    return Scrape.of(serving).value("slipstream:transfers_total")


def test_workers_are_on_the_hosts_with_their_labels_and_pages_travel_between_them(
    serving: HostsCluster, ray_hosts: RayHosts, expected: list[str]
) -> None:
    assert host_of(serving, ray_hosts, "prefill-0").name == "prefill-host"
    decode_hosts = {host_of(serving, ray_hosts, f"decode-{n}").name for n in range(2)}
    assert decode_hosts == {"decode-host-1", "decode-host-2"}
    assert host_of(serving, ray_hosts, "router").name == "head"
    reference = Reference(DEMO_MODEL)
    for variant in range(3):
        num_prompt_tokens, num_output_tokens = SIZES[variant]
        assert expected[variant] == reference.text(prompt_of(num_prompt_tokens, variant), num_output_tokens)
    before = transfers(serving)
    with Load(serving) as load:
        load.wait_for_answers(16)
    load.check(expected)
    assert transfers(serving) > before
    wait_until_at_rest(serving)


def test_a_cut_between_prefill_and_decode_hosts_is_placed_around_and_a_healed_one_is_used_again(
    serving: HostsCluster, ray_hosts: RayHosts, network: Network, expected: list[str]
) -> None:
    before = Scrape.of(serving)
    prefill = network.hosts["prefill-host"]
    decodes = [network.hosts["decode-host-1"], network.hosts["decode-host-2"]]
    with Load(serving) as load:
        load.wait_for_answers(8)
        for decode in decodes:
            network.cut(prefill, decode)
        wait_until_clear(serving, lambda: [] if tried_in_vain(before, serving) else ["no transfer has failed"], 60)
        load.wait_for_answers(40)  # more than there could be if each of them waited for a transfer to fail
        for decode in decodes:
            network.heal(prefill, decode)
        healed = transfers(serving)
        wait_until_clear(serving, lambda: [] if transfers(serving) >= healed + 8 else ["the way is not used again"], 60)
    load.check(expected)
    tries = moved(before, Scrape.of(serving), "slipstream:retries_total", cause="unreachable")
    # Those that were on their way when it was cut, and then one now and then.
    assert tries <= 2 * load.num_clients + 2 * 8, f"{tries} of {len(load.answers)} requests were tried in vain"
    wait_until_at_rest(serving)


def test_a_router_that_begins_anew_while_no_pages_get_through_is_ready_and_computes_prompts_where_they_decode(
    serving: HostsCluster, network: Network, expected: list[str]
) -> None:
    prefill = network.hosts["prefill-host"]
    decodes = [network.hosts["decode-host-1"], network.hosts["decode-host-2"]]
    for decode in decodes:
        network.cut(prefill, decode)
    before = serving.member("router").pids
    os.kill(before[0], signal.SIGKILL)
    serving.wait_for(lambda: serving.member("router").pids != before and is_ready(serving), 60)
    with client_of(serving) as client:
        assert [ask(client, v, "while no pages get through") for v in range(4)] == expected[:4]
    assert transfers(serving) == 0
    for decode in decodes:
        network.heal(prefill, decode)
    with Load(serving) as load:
        wait_until_clear(serving, lambda: [] if transfers(serving) else ["the way is not used again"], 60)
    load.check(expected)
    wait_until_at_rest(serving)


def is_ready(serving: HostsCluster) -> bool:
    try:
        return serving.get("/health/ready")[0] == 200
    except OSError:  # not listening yet
        return False


def tried_in_vain(before: Scrape, serving: HostsCluster) -> bool:
    return moved(before, Scrape.of(serving), "slipstream:retries_total", cause="unreachable") > 0


def test_a_host_that_is_cut_off_from_the_router_for_longer_than_its_lease_comes_back(
    serving: HostsCluster, ray_hosts: RayHosts, network: Network, expected: list[str]
) -> None:
    before = Scrape.of(serving)
    host = host_of(serving, ray_hosts, "decode-1")
    pids = serving.member("decode-1").pids
    with Load(serving) as load:
        load.wait_for_answers(8)
        network.cut(ray_hosts.head, host)
        wait_until_clear(serving, lambda: [] if num_workers(serving) == 2 else ["it still counts as there"], 60)
        load.wait_for_answers(8)
        network.heal(ray_hosts.head, host)
        wait_until_clear(serving, lambda: [] if num_workers(serving) == 3 else ["it has not come back"], 60)
        load.wait_for_answers(8)
    load.check(expected)
    assert moved(before, Scrape.of(serving), "slipstream:retries_total", cause="worker_lost") > 0
    assert serving.member("decode-1").pids == pids  # the process and its weights have stayed
    wait_until_at_rest(serving)


def test_a_host_that_dies_takes_no_request_along_and_a_new_host_takes_its_place(
    serving: HostsCluster, ray_hosts: RayHosts, network: Network, expected: list[str]
) -> None:
    victim = host_of(serving, ray_hosts, "decode-0")
    with Load(serving) as load:
        load.wait_for_answers(8)
        network.unplug(victim)  # no other host hears that its processes end
        victim.kill()
        wait_until_clear(serving, lambda: [] if num_workers(serving) == 2 else ["it still counts as there"], 60)
        load.wait_for_answers(16)
        ray_hosts.add("decode-host-3", labels={"pool": "decode"}, resources={"decode_host": 1})
        serving.wait_for(lambda: num_workers(serving) == 3, 120)
        load.wait_for_answers(16)
    load.check(expected)
    wait_until_at_rest(serving)
    assert host_of(serving, ray_hosts, "decode-0").name == "decode-host-3"


def num_workers(serving: HostsCluster) -> int:
    return len(status_of(serving)["workers"])
