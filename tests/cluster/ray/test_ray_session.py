"""What is known of the Ray that a cluster runs on."""

from __future__ import annotations

import socket

import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.ray.local_ray import RayFailed
from slipstream.cluster.ray.ray_session import RaySession, check_answers
from slipstream.cluster.supervisor.members.deployment import Deployment


@pytest.mark.parametrize(("is_own", "host"), [(True, "127.0.0.1"), (False, "10.0.0.7")])
def test_on_a_ray_that_may_grow_workers_find_the_router_from_other_nodes_from_the_start(
    is_own: bool, host: str
) -> None:
    session = RaySession(is_own=is_own, node_id="n", resources={"CPU": 4.0})
    deployment = Deployment(ClusterConfig(model=ServedModelConfig("/m")), "secret", None, session.may_span_nodes)
    assert deployment.host("127.0.0.1", "10.0.0.7") == host


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "ray://127.0.0.1:{port}", "127.0.0.1:99999", "a..b:6379"])
def test_a_ray_where_nobody_listens_is_one_sentence_at_once(address: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = address.format(port=bound.getsockname()[1])
        with pytest.raises(RayFailed, match=f"^no Ray could be reached at {address}: "):
            check_answers(address)


def test_where_somebody_listens_or_only_ray_knows_it_is_ray_that_finds_out() -> None:
    check_answers("auto")
    with socket.create_server(("127.0.0.1", 0)) as there:
        check_answers(f"127.0.0.1:{there.getsockname()[1]}")
