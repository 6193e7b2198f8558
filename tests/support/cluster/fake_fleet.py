"""A fleet of names without processes, for what talks to a `FleetPort`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.cluster.fleet.fleet_port import FleetError, FleetMember, FleetPort, FleetState
from slipstream.cluster.fleet.model_fleet import Moved
from slipstream.router.protocol.messages import Role


@dataclass(frozen=True, slots=True)
class FakeRouterView:
    """What a router shows, for the admin API; None: there is no router."""

    status: dict[str, Any] | None = None

    async def cluster_status(self) -> dict[str, Any] | None:
        return self.status

    async def signals_to_show(self, model: str) -> dict[str, Any] | None:
        return None


class FakeFleets:
    """The fleets of several models (`FleetView`)."""

    def __init__(self, by_model: Mapping[str, FleetPort]) -> None:
        self._by_model = by_model

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._by_model)

    def state(self) -> FleetState:
        states = [fleet.state() for fleet in self._by_model.values()]
        members = tuple(member for state in states for member in state.members)
        return FleetState(members, sum(one.num_prefill for one in states), sum(one.num_decode for one in states))

    def of_model(self, model: str) -> FleetPort:
        if model not in self._by_model:
            raise FleetError("unknown", "model", f"there is no model {model!r}; there are: {', '.join(self.models)}")
        return self._by_model[model]

    async def move(self, name: str, model: str, role: Role) -> Moved:
        """The worker is gone from its model at once, and another one starts there."""
        await self.of_worker(name).remove(name)
        (added,) = await self.of_model(model).add(role)
        return Moved(added, "it has other devices")

    def of_worker(self, name: str) -> FleetPort:
        for fleet in self._by_model.values():
            if fleet.state().member(name) is not None:
                return fleet
        raise FleetError("unknown", "name", f"there is no worker {name!r}")


class FakeFleet:
    """Changes are done at once. `asked` keeps what was asked for, in order."""

    def __init__(self, num_prefill: int = 1, num_decode: int = 1, first: int = 0, model: str = "") -> None:
        """Names begin with the number `first`."""
        self._first = first
        self._model = model
        self._members: dict[str, FleetMember] = {}
        self.asked: list[tuple[object, ...]] = []
        self._grow("prefill", num_prefill)
        self._grow("decode", num_decode)

    def _grow(self, role: Role, count: int) -> list[str]:
        names = [name for n in range(self._first, 100) if (name := f"{role}-{n}") not in self._members][:count]
        self._members |= {name: FleetMember(name, role, "ready", 0.0, model=self._model) for name in names}
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
