"""A cluster over four hosts for the tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.hosts.host_network import Network, NoNamespaces
from tests.support.hosts.ray_hosts import HostsCluster, RayHosts

SETTINGS: dict[str, Any] = {
    "engine": {"dtype": "float32", "device": "cpu", "kv_cache_mib": 32, "num_threads": 1},
    # No shared memory: hosts of one kernel would find it.
    "kv_transfer": {"tls": "self,tcp", "peer_timeout_s": 2},
    "router": {"dispatch": {"local_prefill_max_tokens": 32, "worker_lease_s": 4}},
    "restart": {"backoff_s": 0.1, "backoff_max_s": 1.0},
    "drain_timeout_s": 5,
    "prefill": {"labels": {"pool": "prefill"}},
    "decode": {"labels": {"pool": "decode"}, "resources": {"decode_host": 1}, "replicas": 2},
}


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    try:
        network = Network().__enter__()
    except NoNamespaces as why:
        pytest.skip(f"no hosts can be made here: {why}")
    try:
        yield network
    finally:
        network.__exit__(None, None, None)


@pytest.fixture(scope="session")
def ray_hosts(network: Network) -> Iterator[RayHosts]:
    """A head, a host for prefill, two for decoding, with room for one worker each."""
    with RayHosts(network) as hosts:
        hosts.add("prefill-host", labels={"pool": "prefill"})
        for name in ("decode-host-1", "decode-host-2"):
            hosts.add(name, labels={"pool": "decode"}, resources={"decode_host": 1})
        hosts.wait_for_hosts(4)
        yield hosts


@pytest.fixture(scope="session")
def serving(ray_hosts: RayHosts) -> Iterator[HostsCluster]:
    with HostsCluster(ray_hosts, SETTINGS) as serving:
        yield serving
