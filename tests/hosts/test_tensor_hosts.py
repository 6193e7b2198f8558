"""Instances of tensor models on several hosts, without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hosts.host_network import Network
from tests.support.hosts.tensor_hosts import address_of, requests_per_second, start_host, tensor_hosts
from tests.support.router.authority import Authority
from tests.support.router.in_loop import in_loop
from tests.support.router.until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@in_loop
async def test_two_hosts_serve_nearly_twice_as_many_requests_as_one(network: Network, tmp_path: Path) -> None:
    rates = []
    for num_hosts in (1, 2):
        folder = tmp_path / str(num_hosts)
        folder.mkdir()
        async with tensor_hosts(network, folder, num_hosts) as lab:
            instances = lab.service.models["m"].serving["1"].instances
            assert instances is not None
            assert sorted(instances.hosts.values()) == [1] * num_hosts
            rates.append(await requests_per_second(lab, 2.0))
            assert lab.pool.usage.num_leases == 0  # tensors have travelled by TCP
    assert rates[1] >= 1.8 * rates[0], rates


@in_loop
async def test_a_host_that_dies_takes_no_request_along_and_its_instance_starts_on_the_other_over_tls_too(
    network: Network, tmp_path: Path
) -> None:
    tls = Authority(tmp_path / "ca").issue("host", f"IP:{network.desk_address}")
    async with tensor_hosts(network, tmp_path, 2, tls) as lab:
        instances = lab.service.models["m"].serving["1"].instances
        assert instances is not None
        network.hosts["two"].kill()
        for number in range(20):
            assert await lab.infer("m", number)
        await until(lambda: instances.hosts == {"one": 2})
        start_host(network.hosts["two"], tmp_path, address_of(lab.sockets[0]), tls)
        await until(lambda: instances.hosts == {"one": 1, "two": 1})
