"""What is known of the Ray that a cluster runs on."""

from __future__ import annotations

import pytest

from slipstream.cluster.config import ClusterConfig, ModelConfig
from slipstream.cluster.members import Deployment
from slipstream.cluster.ray_session import RaySession


@pytest.mark.parametrize(("is_own", "host"), [(True, "127.0.0.1"), (False, "10.0.0.7")])
def test_on_a_ray_that_may_grow_workers_find_the_router_from_other_nodes_from_the_start(
    is_own: bool, host: str
) -> None:
    session = RaySession(is_own=is_own, node_id="n", resources={"CPU": 4.0})
    deployment = Deployment(ClusterConfig(model=ModelConfig("/m")), "secret", None, session.may_span_nodes)
    assert deployment.host("127.0.0.1", "10.0.0.7") == host
