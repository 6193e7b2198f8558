"""A fleet in virtual time: groups take seconds to start and to leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from slipstream.cluster.fleet.fleet_port import FleetMember, FleetState, MemberState
from slipstream.cluster.fleet.update_plan import (
    AddGroup,
    RemoveGroup,
    SetMirror,
    SetSplit,
    UpdateOptions,
    UpdatePlan,
    VersionLoad,
)
from slipstream.cluster.update.rolling_update import RollingUpdate
from slipstream.router.protocol.messages import Role

START_S, LEAVE_S, STEP_S = 5.0, 3.0, 0.5


class ToyFleet:
    """`room`: groups that fit. `starts` says whether a group of a version comes up. `loads` is what the router counts;
    while `router_is_up` is false it does not answer."""

    def __init__(self, prefill: int, decode: int, *, room: int | None = None) -> None:
        self.now = 0.0
        self.room = room
        self.members: dict[str, FleetMember] = {}
        self.number = 0
        self.split: dict[str, float] | None = None
        self.mirror: float | None = None
        self.router_is_up = True
        self.starts: Callable[[str], bool] = lambda version: True
        self.loads: dict[str, VersionLoad] = {"1": VersionLoad(), "2": VersionLoad()}
        self.fewest_ready: dict[Role, int] = {"prefill": prefill, "decode": decode}
        self.most = 0
        for role, count in (("prefill", prefill), ("decode", decode)):
            for _ in range(count):
                name = self.add(role, "1")  # type: ignore[arg-type]
                self.members[name] = replace(self.members[name], state="ready")

    def add(self, role: Role, version: str) -> str:
        self.number += 1
        name = f"{role}-{self.number}"
        self.members[name] = FleetMember(name, role, "pending", self.now, version=version)
        return name

    def remove(self, name: str) -> None:
        member = self.members[name]
        if member.state == "ready":
            self.members[name] = replace(member, state="draining", is_leaving=True, since_s=self.now)
        elif not member.is_leaving:
            del self.members[name]

    def kill(self, name: str) -> None:
        self.members[name] = replace(self.members[name], state="dead", since_s=self.now)

    def exchange_state(self, old: MemberState, new: MemberState) -> None:
        for name, member in self.members.items():
            if member.state == old:
                self.members[name] = replace(member, state=new, since_s=self.now)

    def state(self) -> FleetState:
        return FleetState(tuple(self.members.values()), self.num("prefill"), self.num("decode"), None, False)

    def num(self, role: Role, version: str | None = None, state: str | None = None) -> int:
        return sum(
            m.role == role and not m.is_leaving and version in (None, m.version) and state in (None, m.state)
            for m in self.members.values()
        )

    def run(self, update: RollingUpdate, until: Callable[[], bool], limit_s: float = 1000.0) -> None:
        """Raises AssertionError if it does not come to that in time."""
        end_s = self.now + limit_s
        while not until():
            assert self.now < end_s, [event.text for event in update.events]
            self.step(update)

    def step(self, update: RollingUpdate) -> None:
        self.now += STEP_S
        self._grow_older()
        loads = self.loads if self.router_is_up else None
        for action in update.step(self.state(), loads, self.split, self.now, self.mirror):
            match action:
                case SetSplit(split):
                    self.split = split
                case SetMirror(_, percent):
                    self.mirror = percent
                case AddGroup(role, version):
                    self.add(role, version)
                case RemoveGroup(name):
                    self.remove(name)
        for role in ("prefill", "decode"):
            self.fewest_ready[role] = min(self.fewest_ready[role], self.num(role, state="ready"))
        self.most = max(self.most, len(self.members))

    def _grow_older(self) -> None:
        for name, member in list(self.members.items()):
            age_s = self.now - member.since_s
            if member.is_leaving:
                if age_s >= LEAVE_S:
                    del self.members[name]
            elif member.state in ("pending", "dead"):
                held = sum(m.state != "pending" for m in self.members.values())
                if member.state == "dead" or self.room is None or held < self.room:
                    self.members[name] = replace(member, state="starting", since_s=self.now)
            elif member.state == "starting" and age_s >= START_S:
                state = "ready" if self.starts(member.version) else "failed"
                detail = "" if state == "ready" else "no such file"
                self.members[name] = replace(member, state=state, since_s=self.now, detail=detail)  # type: ignore[arg-type]


def update_of(fleet: ToyFleet, wanted: dict[Role, int] | None = None, **options: object) -> RollingUpdate:
    """From version 1 to version 2."""
    initial: dict[Role, int] = {"prefill": fleet.num("prefill"), "decode": fleet.num("decode")}
    plan = UpdatePlan("1", "2", wanted or initial, initial, UpdateOptions(**options))  # type: ignore[arg-type]
    return RollingUpdate(plan, fleet.now)
