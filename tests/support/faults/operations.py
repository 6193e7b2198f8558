"""What an operator does to a cluster while it breaks: resizes it, drains workers, switches roles, updates it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slipstream.cluster.admin_api.client.admin_client import AdminClient, client_of
from slipstream.cluster.terminal.command_error import CommandError
from slipstream.router.protocol.messages import ROLES, Role
from tests.support.e2e.serving_cluster import ServingCluster

MOST = {"prefill": 2, "decode": 3}  # groups; the machine has room for them
FEWEST = {"prefill": 0, "decode": 1}
REST_TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Change:
    """`said` for people."""

    said: str
    path: str
    body: dict[str, Any]


class Operations:
    """Each asks the admin API for one change, and does not wait for its end: others may strike meanwhile. What was
    asked for last of the size of a pool is to be so in the end."""

    def __init__(self, serving: ServingCluster, rng: random.Random) -> None:
        self._serving = serving
        self._rng = rng
        self._num_updates = 0
        self._changes: tuple[Callable[[dict[str, Any]], Change | None], ...] = (
            self._scale,
            self._scale,
            self._drain,
            self._role,
            self._update,
        )
        self.num_begun = 0
        self.num_refused = 0

    async def operate(self) -> str:
        operator = self._operator()
        update = await asyncio.to_thread(operator.get, "/v1/update")
        if update["is_active"]:
            if update["phase"] != "rolling_back" and self._rng.random() < 0.5:
                return await self._ask(operator, Change("roll back", "/v1/update/rollback", {}))
            return f"an update is under way: {update['line']}"
        fleet = await asyncio.to_thread(operator.get, "/v1/fleet")
        change = self._rng.choice(self._changes)(fleet)
        return "nothing to change" if change is None else await self._ask(operator, change)

    def _operator(self) -> AdminClient:
        state = self._serving.state
        assert state is not None
        return client_of(state)

    async def _ask(self, operator: AdminClient, change: Change) -> str:
        try:
            await asyncio.to_thread(operator.post, change.path, change.body)
        except CommandError as refused:
            self.num_refused += 1
            return f"{change.said}: refused, {refused}"
        self.num_begun += 1
        return change.said

    def _scale(self, fleet: dict[str, Any]) -> Change:
        role: Role = self._rng.choice(ROLES)
        replicas = self._rng.randint(FEWEST[role], MOST[role])
        return Change(f"scale {role}={replicas}", "/v1/fleet/scale", {"role": role, "replicas": replicas})

    def _spare(self, fleet: dict[str, Any]) -> dict[str, Any] | None:
        """A group that its role can do without."""
        spare = [m for m in fleet["members"] if not m["is_leaving"] and fleet[f"num_{m['role']}"] > FEWEST[m["role"]]]
        member: dict[str, Any] | None = self._rng.choice(spare) if spare else None
        return member

    def _drain(self, fleet: dict[str, Any]) -> Change | None:
        member = self._spare(fleet)
        if member is None:
            return None
        migrate = self._rng.random() < 0.7
        said = f"drain {member['name']}{'' if migrate else ' without migration'}"
        return Change(said, f"/v1/workers/{member['name']}/drain", {"migrate": migrate})

    def _role(self, fleet: dict[str, Any]) -> Change | None:
        member = self._spare(fleet)
        if member is None:
            return None
        role = "decode" if member["role"] == "prefill" else "prefill"
        return Change(f"{member['name']} to {role}", f"/v1/workers/{member['name']}/role", {"role": role})

    def _update(self, fleet: dict[str, Any]) -> Change:
        """To the same model with another size of the cache, which takes an exchange of all groups."""
        self._num_updates += 1
        settings = yaml.safe_load(self._serving.config_path.read_text())
        settings["engine"]["kv_cache_mib"] += self._num_updates % 2
        path = Path(self._serving.config_path).with_name(f"update-{self._num_updates}.yaml")
        path.write_text(yaml.safe_dump(settings))
        return Change(f"update {self._num_updates}", "/v1/update", {"config": str(path)})

    async def unfinished(self) -> list[str]:
        """What has not come true some time after the last fault; empty if all has."""
        operator = self._operator()
        try:
            async with asyncio.timeout(REST_TIMEOUT_S):
                while found := await asyncio.to_thread(self._left_undone, operator):
                    await asyncio.sleep(0.5)
        except TimeoutError:
            return found
        return []

    def _left_undone(self, operator: AdminClient) -> list[str]:
        fleet, update = operator.get("/v1/fleet"), operator.get("/v1/update")
        found = ["the fleet is still changing"] if fleet["is_changing"] else []
        found += [f"the update has not ended: {update['line']}"] if update["is_active"] else []
        for role in ROLES:
            num_ready = sum(m["role"] == role and m["state"] == "ready" for m in fleet["members"])
            if num_ready != fleet[f"num_{role}"]:
                found.append(f"{num_ready} {role} groups of {fleet[f'num_{role}']}: {json.dumps(fleet['members'])}")
        return found
