"""Operators say how many instances a tensor model has: what is decided, kept and shown."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from slipstream.cluster.access.token_file import AdminTokens
from slipstream.cluster.admin_api.admin_app import build_app
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.served_config import from_plain
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.models.served_models import ServedModels
from slipstream.cluster.models.tensor_instance_counts import TensorInstanceCounts
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.state.repository_lines import instances_line
from slipstream.cluster.state.state_file import StateFile
from slipstream.cluster.supervisor.managed_router import ManagedRouter
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.status.instances_status import InstancesStatus
from tests.support.cluster.fake_fleet import FakeFleets, FakeRouterView

TOKEN = "a-token-for-the-tests"
ONE = ClusterConfig(repository=RepositoryConfig(("/repository",)))


class OneModel:
    """A router that serves the model `topics`."""

    def __init__(self) -> None:
        self.counts = InstanceCountsConfig(count=1)

    async def set_instance_counts(self, model: str, config: InstanceCountsConfig) -> None:
        self.counts = config

    async def instances_status(self, model: str) -> list[InstancesStatus]:
        counts = self.counts
        count = counts.count or 1
        status = InstancesStatus("topics", "1", count, {"a": count}, counts.min if counts.max else None, counts.max)
        return [status] if model in ("", "topics") else []


class Site:
    """The admin API of a cluster that serves only a repository."""

    def __init__(self, tmp_path: Path) -> None:
        self.state = ClusterState("c", 1, 2.0, "/c.yaml", "")
        self.changes, self.router = ChangeLog(None), OneModel()
        file = StateFile(tmp_path / "c.json", self.state, print)
        models, router = ServedModels(ONE, self.state), cast(ManagedRouter, self.router)
        instances = TensorInstanceCounts(router, models, file, self.changes)
        tokens = AdminTokens(TOKEN)
        parts = DriverParts(
            FakeFleets({}), self.state, FakeRouterView(), tokens, changes=self.changes, instances=instances
        )
        self._app = build_app(parts, [])

    def ask(self, method: str, body: dict[str, Any] | None = None, model: str = "topics") -> Any:
        async def ask() -> Any:
            shown, transport = {"Authorization": f"Bearer {TOKEN}"}, httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://operator", headers=shown) as client:
                return (await client.request(method, f"/v1/instances?model={model}", json=body)).json()

        return asyncio.run(ask())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_count_reaches_the_router_the_next_driver_and_the_history(site: Site) -> None:
    (version,) = site.ask("POST", {"count": 3})["versions"]
    assert (version["count"], version["hosts"], version["max"]) == (3, {"a": 3}, None)
    next_config = from_plain(site.state.served)
    assert next_config is not None
    assert next_config.repository.instances == {"topics": InstanceCountsConfig(count=3)}
    (change,) = site.changes.latest(1)
    assert (change.what, change.model, change.old, change.new) == ("scale", "topics", "as its configuration says", "3")


def test_bounds_let_the_number_follow_the_demand_and_a_count_stays_within_them(site: Site) -> None:
    (version,) = site.ask("POST", {"min": 1, "max": 4})["versions"]
    assert instances_line(version) == "topics version 1: instances 1 wanted (1 to 4): 1 on a"
    site.ask("POST", {"count": 2})
    assert site.router.counts == InstanceCountsConfig(count=2, min=1, max=4)
    error = site.ask("POST", {"count": 5})["error"]
    assert (error["code"], error["message"]) == ("invalid", "count must be 1 to 4, or null, got 5")
    assert site.router.counts.count == 2


def test_a_model_without_instances_is_named(site: Site) -> None:
    error = site.ask("POST", {"count": 2}, model="topic")["error"]
    assert (error["code"], error["message"]) == ("unknown", "no version of 'topic' with instances serves")
    assert site.ask("GET", model="topic") == {"versions": []}
