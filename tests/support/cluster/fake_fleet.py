"""A fleet of names without processes, for what talks to a `FleetPort`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from slipstream.cluster.fleet.fleet_port import FleetError, FleetMember, FleetState
from slipstream.router.protocol.messages import Role


@dataclass(frozen=True, slots=True)
class FakeRouterView:
    """What a router shows, for the admin API; None: there is no router."""

    status: dict[str, Any] | None = None

    async def cluster_status(self) -> dict[str, Any] | None:
        return self.status

    async def signals_to_show(self) -> dict[str, Any] | None:
        return None


class FakeFleet:
    """Changes are done at once. `asked` keeps what was asked for, in order."""

    def __init__(self, num_prefill: int = 1, num_decode: int = 1) -> None:
        self._members: dict[str, FleetMember] = {}
        self.asked: list[tuple[object, ...]] = []
        self._grow("prefill", num_prefill)
        self._grow("decode", num_decode)

    def _grow(self, role: Role, count: int) -> list[str]:
        names = [name for n in range(100) if (name := f"{role}-{n}") not in self._members][:count]
        self._members |= {name: FleetMember(name, role, "ready", 0.0) for name in names}
        return names

    def state(self) -> FleetState:
        roles = [member.role for member in self._members.values()]
        return FleetState(tuple(self._members.values()), roles.count("prefill"), roles.count("decode"))

    async def add(self, role: Role, count: int = 1, version: str | None = None) -> list[str]:
        self.asked.append(("add", role, count, version))
        return self._grow(role, count)

    async def remove(self, name: str, *, migrate: bool = True) -> None:
        self._check(name)
        self.asked.append(("remove", name, migrate))
        del self._members[name]

    async def switch_role(self, name: str, role: Role) -> None:
        member = self._check(name)
        self.asked.append(("switch", name, role))
        self._members[name] = dataclasses.replace(member, role=role)

    async def scale(self, role: Role, replicas: int) -> None:
        self.asked.append(("scale", role, replicas))
        names = [member.name for member in self._members.values() if member.role == role]
        for name in names[replicas:]:
            del self._members[name]
        self._grow(role, max(0, replicas - len(names)))

    def _check(self, name: str) -> FleetMember:
        if name not in self._members:
            raise FleetError("unknown", "name", f"there is no worker {name!r}")
        return self._members[name]
