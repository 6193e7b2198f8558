"""A fleet whose changes are noted in the history."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.cluster.fleet.author import Author
from slipstream.cluster.fleet.fleet_port import FleetPort, FleetState
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.router.protocol.messages import Role


@dataclass(frozen=True, slots=True)
class RecordedFleet:
    """What one caller does with the `fleet` of a model (`FleetPort`). What is refused is not noted."""

    fleet: FleetPort
    changes: ChangeLog
    author: Author
    model: str = ""

    def state(self) -> FleetState:
        return self.fleet.state()

    async def add(self, role: Role, count: int = 1, version: str | None = None) -> list[str]:
        before = self.state().num(role)
        names = await self.fleet.add(role, count, version)
        self._note_scale(role, before)
        return names

    async def scale(self, role: Role, replicas: int) -> None:
        before = self.state().num(role)
        await self.fleet.scale(role, replicas)
        self._note_scale(role, before)

    async def remove(self, name: str, *, migrate: bool = True) -> None:
        member = self.state().member(name)
        await self.fleet.remove(name, migrate=migrate)
        self.changes.note(self.author, "remove", name, member.role if member is not None else "", model=self.model)

    async def switch_role(self, name: str, role: Role) -> None:
        member = self.state().member(name)
        before = member.role if member is not None else ""
        await self.fleet.switch_role(name, role)
        if before != role:
            self.changes.note(self.author, "role", name, before, role, model=self.model)

    def _note_scale(self, role: Role, before: int) -> None:
        now = self.state().num(role)
        if now != before:
            self.changes.note(self.author, "scale", role, str(before), str(now), model=self.model)
