"""The admin API of a cluster with several models: which model is meant, and models that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from slipstream.cluster.access.token_file import AdminTokens
from slipstream.cluster.admin_api.admin_app import build_app
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.admin_api.model_routes import model_routes
from slipstream.cluster.admin_api.models_port import ModelInfo
from slipstream.cluster.admin_api.planner_routes import PlannerPage
from slipstream.cluster.fleet.author import Author
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.state.cluster_state import ClusterState
from tests.support.cluster.fake_fleet import FakeFleet, FakeFleets, FakeRouterView

TOKEN = "a-token-for-the-tests"


@dataclass
class FakeModels:
    """Models without workers (`ModelsPort`)."""

    known: dict[str, ModelInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("chat", "org/draft"):
            self.known[name] = ModelInfo(name, (), "v1", "serving", "", 0, 1, 1, "/m", "/c.yaml")

    def models(self) -> tuple[ModelInfo, ...]:
        return tuple(self.known.values())

    async def add(self, path: Path, by: Author) -> list[str]:
        if path.name != "code.yaml":
            raise FleetError("invalid", "config", f"{path}: no such file")
        self.known["code"] = replace(self.known["chat"], name="code")
        return ["code"]

    async def remove(self, name: str, by: Author) -> None:
        if name not in self.known:
            raise FleetError("unknown", "model", f"there is no model {name!r}")
        del self.known[name]

    async def set_aliases(self, name: str, aliases: Sequence[str], by: Author) -> None:
        self.known[name] = replace(self.known[name], aliases=tuple(aliases))


def asked(
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    models: FakeModels | None = None,
    changes: ChangeLog | None = None,
) -> Any:
    chat, draft = FakeFleet(0, 1, model="chat"), FakeFleet(1, 1, first=1, model="draft")
    state = ClusterState("demo", 1, 2.0, "/c.yaml", "chat")
    fleets, history = FakeFleets({"chat": chat, "draft": draft}), changes or ChangeLog(None)
    parts = DriverParts(fleets, state, FakeRouterView(), AdminTokens(TOKEN), changes=history)

    async def ask() -> Any:
        app = build_app(parts, (model_routes(models or FakeModels()),))
        shown = {"Authorization": f"Bearer {TOKEN}"}
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://operator", headers=shown) as client:
            return (await client.request(method, path, json=body)).json()

    return asyncio.run(ask())


def test_without_a_model_a_pool_is_not_scaled_and_the_models_are_named() -> None:
    error = asked("POST", "/v1/fleet/scale", {"role": "decode", "replicas": 2})["error"]
    assert error["param"] == "model"
    assert error["message"].endswith(": chat, draft")
    error = asked("POST", "/v1/fleet/scale?model=code", {"role": "decode", "replicas": 2})["error"]
    assert (error["code"], error["message"]) == ("unknown", "there is no model 'code'; there are: chat, draft")


def test_the_pool_of_a_model_is_scaled_by_itself() -> None:
    for answer in (
        asked("POST", "/v1/fleet/scale?model=draft", {"role": "decode", "replicas": 2}),
        asked("POST", "/v1/fleet/scale", {"role": "decode", "replicas": 2, "model": "draft"}),
    ):
        assert (answer["num_prefill"], answer["num_decode"], answer["added"]) == (1, 2, ["decode-2"])
        assert {member["model"] for member in answer["members"]} == {"draft"}


def test_the_fleet_is_that_of_all_models_or_of_one() -> None:
    assert [member["name"] for member in asked("GET", "/v1/fleet")["members"]] == ["decode-0", "prefill-1", "decode-1"]
    assert [member["name"] for member in asked("GET", "/v1/fleet?model=chat")["members"]] == ["decode-0"]


def test_a_worker_needs_no_model_because_its_name_is_its_own() -> None:
    answer = asked("POST", "/v1/workers/prefill-1/drain")
    assert [member["name"] for member in answer["members"]] == ["decode-1"]


def test_a_model_that_loses_its_last_decode_worker_is_named() -> None:
    answer = asked("POST", "/v1/workers/decode-0/model", {"model": "draft"})
    assert answer["warning"] == (
        "decode-0 leaves, and decode-2 starts in its place: it has other devices; "
        "chat: no decode worker is left: requests wait, for router.dispatch.queue_timeout_s at most"
    )


def test_a_move_is_in_the_history_of_both_models() -> None:
    changes = ChangeLog(None)
    asked("POST", "/v1/workers/decode-0/model", {"model": "draft"}, changes=changes)
    assert [(one.model, one.old, one.new) for one in changes.latest(5)] == [
        ("chat", "chat", "draft"),
        ("draft", "chat", "draft"),
    ]


def test_status_has_the_signals_of_each_model() -> None:
    assert asked("GET", "/v1/status")["signals_by_model"] == {"chat": None, "draft": None}


def test_models_are_added_and_removed_by_any_name() -> None:
    models = FakeModels()
    answer = asked("POST", "/v1/models", {"config": "/code.yaml"}, models)
    assert (answer["added"], [one["name"] for one in answer["models"]]) == (["code"], ["chat", "org/draft", "code"])
    answer = asked("POST", "/v1/models/org%2Fdraft/remove", {}, models)
    assert [one["name"] for one in answer["models"]] == ["chat", "code"]
    assert asked("POST", "/v1/models/nobody/remove", {}, models)["error"]["code"] == "unknown"
    assert asked("POST", "/v1/models", {"config": "/x.yaml"}, models)["error"]["message"] == "/x.yaml: no such file"


def test_aliases_come_and_go() -> None:
    models = FakeModels()
    asked("POST", "/v1/models/chat/aliases", {"add": ["a", "b", "a"]}, models)
    answer = asked("POST", "/v1/models/chat/aliases", {"add": ["c"], "remove": ["a"]}, models)
    assert answer["models"][0]["aliases"] == ["b", "c"]
    error = asked("POST", "/v1/models/chat/aliases", {"remove": ["z"]}, models)["error"]
    assert (error["param"], error["message"]) == ("remove", "z is no alias of chat")


def test_the_wanted_workers_of_each_model_are_a_metric() -> None:
    fleets = FakeFleets({"chat": FakeFleet(0, 1), "draft": FakeFleet(2, 3)})
    found = {
        tuple(sample.labels.values()): sample.value
        for family in PlannerPage(None, fleets).collect()
        for sample in family.samples
    }
    assert found[("draft", "decode")] == 3
    assert found[("chat", "prefill")] == 0
    assert found[("decode",)] == 4
