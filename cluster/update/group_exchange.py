"""The worker groups of a role, exchanged one at a time for groups of another version. Sans-IO: it takes the observed
state and a time, and returns actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.cluster.fleet.fleet_port import FleetMember, FleetState
from slipstream.cluster.fleet.update_plan import AddGroup, RemoveGroup, UpdatePlan
from slipstream.router.protocol.messages import Role

Actions = Iterator[AddGroup | RemoveGroup]


@dataclass(frozen=True, slots=True)
class GroupExchange:
    """Groups of version `coming` take the places of those of version `going`, until there are `target` of them. `fleet`
    is what was seen at `now`."""

    plan: UpdatePlan
    fleet: FleetState
    now: float
    role: Role
    coming: str
    going: str
    target: int

    def begin(self) -> Actions:
        """Adds the first group of the version that comes, and no further ones."""
        if self.target and not self._num_coming:
            yield from self._add()
        elif self._waits_for_room:
            yield from self._make_room()

    def advance(self, keep: int = 0) -> Actions:
        """Adds a group of the version that comes, and removes one of the version that goes, of which `keep` stay."""
        fleet, options = self.fleet, self.plan.options
        going = [member for member in fleet.of_version(self.going) if member.role == self.role]
        leaving = going if len(going) > keep else []
        if self._num_coming < self.target:
            yield from self._add()
        if self._waits_for_room:
            yield from self._make_room()
        elif leaving:
            candidate = _first_to_go(leaving)
            num_ready_coming = fleet.num_ready(self.coming, self.role)
            num_ready = num_ready_coming + fleet.num_ready(self.going, self.role)
            floor = max(self.target, self.plan.wanted[self.role] if keep else 0) - options.max_unavailable
            is_idle = candidate.state != "ready"
            # The last decode worker of the leaving version stays while new requests still go to that version.
            if is_idle or (num_ready - 1 >= floor and (self.role != "decode" or num_ready_coming > 0)):
                yield RemoveGroup(candidate.name, f"version {self.coming} takes its place")

    @property
    def _num_coming(self) -> int:
        return sum(one.role == self.role and one.state != "failed" for one in self.fleet.of_version(self.coming))

    def _add(self) -> Actions:
        """Adds a group of the version that comes, or first makes room for it."""
        fleet, options = self.fleet, self.plan.options
        # Groups that are leaving still hold their memory.
        num_there = sum(member.role == self.role and member.state != "failed" for member in fleet.members)
        most = max(self.target, self.plan.initial[self.role]) + options.surge
        is_full = fleet.max_members is not None and len(fleet.members) >= fleet.max_members
        if num_there < most and not is_full:
            yield AddGroup(self.role, self.coming, f"group {self._num_coming + 1} of {self.target}")
        elif is_full or options.surge == 0:
            yield from self._make_room()

    def _make_room(self) -> Actions:
        """If there is no room for new groups, one old group is removed first, provided others of its role still
        serve."""
        of_role = [member for member in self.fleet.members if member.role == self.role]
        going = [one for one in self.fleet.of_version(self.going) if one.role == self.role and one.state == "ready"]
        num_ready = sum(member.state == "ready" and not member.is_leaving for member in of_role)
        is_leaving = any(member.is_leaving for member in of_role)
        max_unavailable = self.plan.options.max_unavailable
        is_spare = num_ready - 1 >= max(self.target - max(max_unavailable, 1), 0)
        may_be_none = self.role == "prefill" or max_unavailable > 0
        if going and not is_leaving and is_spare and (num_ready > 1 or may_be_none):
            yield RemoveGroup(_first_to_go(going).name, "there is no room for a further group beside it")

    @property
    def _waits_for_room(self) -> bool:
        return any(
            member.role == self.role
            and member.state == "pending"
            and self.now - member.since_s >= self.plan.options.no_room_s
            for member in self.fleet.of_version(self.coming)
        )


def _first_to_go(members: list[FleetMember]) -> FleetMember:
    """A group that does not serve or, if all do, the one with the highest number, so that the first ones stay
    longest."""
    idle = [member for member in members if member.state != "ready"]
    return (idle or members)[-1]
