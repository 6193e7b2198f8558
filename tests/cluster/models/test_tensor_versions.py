"""Operators divide the requests to a tensor model between its versions: what is decided, kept and shown."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from slipstream.cluster.access.token_file import AdminTokens
from slipstream.cluster.admin_api.admin_app import build_app
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.admin_api.update_routes import update_routes
from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.served_config import from_plain
from slipstream.cluster.fleet.author import OPERATOR
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.fleet.update_plan import UpdateOptions
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.models.served_models import ServedModels
from slipstream.cluster.models.tensor_versions import TensorVersions
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.state.state_file import StateFile, read
from slipstream.cluster.supervisor.managed_router import ManagedRouter
from slipstream.cluster.update.updaters import Updaters
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus, TensorVersionStatus
from tests.support.cluster.fake_fleet import FakeFleets, FakeRouterView
from tests.support.router.until import until

TOKEN = "a-token-for-the-tests"
ONE = ClusterConfig(repository=RepositoryConfig(("/repository",)))


class TwoVersions:
    """A router that serves the model `topics` in versions 1 and 2."""

    def __init__(self) -> None:
        self.told: list[tuple[str, TensorVersionsConfig]] = []
        self.answers = True
        self.num_succeeded = 4
        self.num_more = 0  # with each question

    async def set_tensor_versions(self, model: str, config: TensorVersionsConfig) -> None:
        self.told.append((model, config))

    async def tensor_versions(self, model: str) -> TensorVersionsStatus | None:
        if not self.answers:
            raise ConnectionError("there is no router")
        versions = tuple(TensorVersionStatus(version, 1.0, self.num_succeeded, 0, 0.02) for version in ("1", "2"))
        self.num_succeeded += self.num_more
        return TensorVersionsStatus(versions) if model == "topics" else None


class Site:
    """The admin API of a cluster that serves only a repository."""

    def __init__(self, tmp_path: Path, before: ClusterState | None = None) -> None:
        """Of a driver that follows one with the state `before`."""
        self.state = ClusterState("c", 1, 2.0, "/c.yaml", "")
        if before is not None:
            self.state.carry_on(before)
        self.changes, self.router = ChangeLog(None), TwoVersions()
        file = StateFile(tmp_path / "c.json", self.state, print)
        router = cast(ManagedRouter, self.router)
        self.tensors = TensorVersions(router, ServedModels(ONE, self.state), file, self.changes)
        parts = DriverParts(FakeFleets({}), self.state, FakeRouterView(), AdminTokens(TOKEN), changes=self.changes)
        self._app = build_app(parts, [update_routes(Updaters(), self.tensors)])

    def ask(self, method: str, change: str = "", body: dict[str, Any] | None = None, model: str = "topics") -> Any:
        async def ask() -> Any:
            shown, transport = {"Authorization": f"Bearer {TOKEN}"}, httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://operator", headers=shown) as client:
                return (await client.request(method, f"/v1/update{change}?model={model}", json=body)).json()

        return asyncio.run(ask())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_split_reaches_the_router_the_next_driver_and_the_history(site: Site) -> None:
    answer = site.ask("POST", "/split", {"weights": {"1": 90, "2": 10}})
    expected = TensorVersionsConfig({"1": 90.0, "2": 10.0}, before="1")
    assert site.router.told == [("topics", expected)]
    assert (answer["split"], answer["old"], answer["is_active"]) == ({"1": 90.0, "2": 10.0}, "1", False)
    assert answer["line"] == (
        "version 1: 50 %, 4 requests, 5.0 ms each, 0 failed; version 2: 50 %, 4 requests, 5.0 ms each, 0 failed"
    )
    next_config = from_plain(site.state.served)
    assert next_config is not None
    assert next_config.repository.versions == {"topics": expected}
    (change,) = site.changes.latest(1)
    assert (change.what, change.model, change.old, change.new) == (
        "split",
        "topics",
        "the highest version",
        "1=90, 2=10",
    )


def test_a_roll_back_gives_all_requests_to_what_served_before(site: Site) -> None:
    site.ask("POST", "/split", {"weights": {"1": 90, "2": 10}})
    answer = site.ask("POST", "/rollback")
    assert (answer["split"], answer["new"]) == ({"1": 1.0}, "1")
    error = site.ask("POST", "/rollback")["error"]
    assert (error["code"], error["message"]) == ("conflict", "there is no earlier version to go back to")


def test_a_mirror_begins_and_ends(site: Site) -> None:
    site.ask("POST", "/mirror", {"version": "2", "percent": 5})
    mirror = site.tensors.routes("topics").mirror
    assert mirror is not None
    assert (mirror.version, mirror.percent) == ("2", 5.0)
    assert site.changes.latest(1)[0].new == "the highest version; 5 % mirrored to 2"
    site.ask("POST", "/mirror", {"version": "2", "percent": None})
    assert site.tensors.routes("topics").mirror is None


def test_mistakes_change_nothing_and_are_named(site: Site) -> None:
    error = site.ask("POST", "/split", {"weights": {"3": 1}})["error"]
    assert error["message"] == "version '3' of topics does not serve; there are: 1, 2"
    error = site.ask("POST", "/mirror", {"version": "2", "percent": 200})["error"]
    assert error["message"] == "mirror.percent must be over 0 and at most 100, got 200"
    error = site.ask("POST", "/split", {"weights": {"1": 1}}, model="unknown")["error"]
    assert error["message"] == "there is no model 'unknown'; there are: none"
    assert site.router.told == []


def test_without_a_router_it_is_not_known_which_versions_serve(site: Site) -> None:
    site.router.answers = False
    error = site.ask("POST", "/split", {"weights": {"1": 1}})["error"]
    assert (error["code"], error["message"]) == ("unavailable", "the router does not answer: there is no router")


def test_a_promotion_is_shown_and_may_be_cut_short(tmp_path: Path) -> None:
    async def play() -> None:
        site = Site(tmp_path)
        options = UpdateOptions(steps=(5, 100), canary_s=3600)
        await site.tensors.promote("topics", "2", options, OPERATOR)
        assert site.tensors.routes("topics").split == {"1": 95.0, "2": 5.0}
        progress = site.tensors.progress("topics")
        assert progress is not None
        assert (progress.phase, progress.step) == ("canary", "1 of 1")
        with pytest.raises(FleetError, match="promoted already"):
            await site.tensors.promote("topics", "2", options, OPERATOR)
        with pytest.raises(FleetError, match="a share over 0"):
            await site.tensors.set_split("topics", {"1": 0}, OPERATOR)
        assert not progress.is_over
        await site.tensors.roll_back("topics", OPERATOR)
        async with asyncio.timeout(10):
            while not progress.is_over:
                await asyncio.sleep(0.01)
        assert progress.phase == "cut_short"
        assert site.tensors.routes("topics").split == {"1": 1.0}
        await site.tensors.close()

    asyncio.run(play())


def test_the_next_driver_says_that_a_promotion_was_cut_short_until_the_split_is_changed(tmp_path: Path) -> None:
    async def play() -> None:
        site = Site(tmp_path)
        await site.tensors.promote("topics", "2", UpdateOptions(steps=(5, 100), canary_s=3600), OPERATOR)
        await site.tensors.close()

    asyncio.run(play())
    before = read(tmp_path / "c.json")
    assert before is not None
    assert "promotions" not in before.public()
    following = Site(tmp_path, before)
    shown = following.ask("GET")
    assert (shown["is_active"], shown["phase"]) == (False, "cut_short")
    assert shown["line"].startswith(
        "cut short by the end of the driver; the versions keep their shares (step 1 of 1: version 2 gets 5 %"
    )
    following.ask("POST", "/split", {"weights": {"1": 90, "2": 10}})
    assert following.ask("GET")["phase"] is None
    assert Site(tmp_path, read(tmp_path / "c.json")).ask("GET")["phase"] is None


def test_a_promotion_that_has_ended_is_not_cut_short(tmp_path: Path) -> None:
    async def play() -> None:
        site = Site(tmp_path)
        site.router.num_more = 1
        await site.tensors.promote("topics", "2", UpdateOptions(steps=(50,), canary_s=0, min_requests=1), OPERATOR)
        await until(lambda: site.tensors.routes("topics").split == {"2": 100.0})
        await site.tensors.close()
        assert site.state.promotions == {}

    asyncio.run(play())


def test_a_promotion_needs_another_version_and_sensible_steps(site: Site) -> None:
    error = site.ask("POST", "/promote", {"version": "2", "steps": [50, 10]})["error"]
    assert (error["param"], error["code"]) == ("steps", "invalid")
    error = site.ask("POST", "/promote", {"version": "3", "steps": [50, 100]})["error"]
    assert error["message"] == "version '3' of topics does not serve; there are: 1, 2"
