"""What `serve` prints once the cluster is up."""

from __future__ import annotations

import dataclasses

from slipstream.cluster.config.cluster_config import ClusterConfig, ServedModelConfig
from slipstream.cluster.driver.start_report import first_request
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.router.config.ui_config import UiConfig


def lines(config: ClusterConfig, admin_url: str = "") -> list[str]:
    state = ClusterState("one", 1, 0.0, "/c.yaml", "m", "ready", "http://127.0.0.1:8000", admin_url=admin_url)
    return list(first_request(config, state))


CONFIG = ClusterConfig(ServedModelConfig("/m"))


def test_the_page_is_named_at_each_port_that_serves_it() -> None:
    assert [line for line in lines(CONFIG) if "/ui/" in line] == ["Page: http://127.0.0.1:8000/ui/"]
    assert [line for line in lines(CONFIG, "http://127.0.0.1:9000") if "/ui/" in line] == [
        "Page: http://127.0.0.1:8000/ui/",
        "Page of the cluster: http://127.0.0.1:9000/ui/#/cluster",
    ]


def test_a_page_that_is_off_is_not_named() -> None:
    router = dataclasses.replace(CONFIG.router, ui=UiConfig(enabled=False))
    config = dataclasses.replace(CONFIG, router=router)
    assert not [line for line in lines(config, "http://127.0.0.1:9000") if "/ui/" in line]
