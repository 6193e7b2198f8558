"""Models that are added at the same time: the supervisor, the fleet and the files are scripted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.cluster.fleet.author import REPOSITORY
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.models.model_admin import ModelAdmin

GROUPS_OF_EACH = 2


class ScriptedSupervisor:
    """Groups serve once both models have theirs."""

    def __init__(self) -> None:
        self.groups: list[Any] = []
        self.members = ()

    async def add(self, groups: list[Any]) -> None:
        self.groups += groups

    async def served(self, name: str) -> None:
        while len(self.groups) < 2 * GROUPS_OF_EACH:
            await asyncio.sleep(0)


class ScriptedFleet:
    newest = None

    def of_model(self, name: str) -> ScriptedFleet:
        return self

    def make(self, role: str, count: int, release: None) -> list[str]:
        return [role] * count

    def state(self) -> Any:
        return SimpleNamespace(members=[SimpleNamespace(name="chat/decode-0")])


def test_a_models_file_is_made_when_those_before_have_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(*_: Any) -> None:
        await asyncio.sleep(0)

    pool = SimpleNamespace(replicas=GROUPS_OF_EACH)
    config = SimpleNamespace(pools=lambda: [("decode", pool)])
    monkeypatch.setattr(
        ModelAdmin, "_read", lambda _, path: [SimpleNamespace(entry=SimpleNamespace(name=path.name), config=config)]
    )
    monkeypatch.setattr(ModelAdmin, "_begin", begin)

    async def scenario() -> list[int]:
        supervisor = ScriptedSupervisor()
        unused: Any = SimpleNamespace(
            event=lambda text: None, config=SimpleNamespace(startup_timeout_s=20.0), state=None
        )
        cluster: Any = SimpleNamespace(supervisor=supervisor, fleet=ScriptedFleet())
        admin = ModelAdmin(cluster, unused, unused, unused, ChangeLog(None), unused)
        seen: list[int] = []
        await asyncio.gather(
            *(
                admin.add(Path(name), REPOSITORY, name, lambda _: seen.append(len(supervisor.groups)))
                for name in ("chat", "draft")
            )
        )
        return seen

    assert asyncio.run(scenario()) == [0, GROUPS_OF_EACH]
