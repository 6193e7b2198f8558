"""Workers that were asked for and have not served yet. They are capacity to come, and no reason to ask for more, for as
long as a start may take; those that fail or take longer do not count."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.cluster.fleet.fleet_port import CHANGING, FleetMember

STARTING = (CHANGING - {"draining"}) | {"pending"}


class PendingStarts:
    """From one look at the cluster to the next."""

    def __init__(self) -> None:
        self._has_served: set[str] = set()
        self._since_s: dict[str, float] = {}  # when those that have not served were seen first
        self._failed: set[str] = set()
        self._looked_s: float | None = None

    def see(self, members: Iterable[FleetMember], now: float) -> dict[str, float]:
        """Returns the workers that serve since the last look, and how many seconds they took as far as was seen."""
        members = tuple(members)
        names = {member.name for member in members}
        self._has_served &= names
        self._failed &= names
        self._since_s = {name: since_s for name, since_s in self._since_s.items() if name in names}
        ready = {member.name for member in members if member.state == "ready"}
        came = {name: now - self._since_s.pop(name) for name in ready & self._since_s.keys()}
        if self._looked_s is not None:  # those that are there at the first look may have served for long
            came |= dict.fromkeys(ready - self._has_served - came.keys(), now - self._looked_s)
        self._looked_s = now
        self._has_served |= ready
        for name in names - self._has_served:
            self._since_s.setdefault(name, now)
        return came

    def has_served(self, name: str) -> bool:
        return name in self._has_served

    def is_coming(self, member: FleetMember, now: float, bound_s: float) -> bool:
        """It is about to serve for the first time, and has not taken longer than `bound_s`."""
        since_s = self._since_s.get(member.name)
        is_starting = since_s is not None and member.state in STARTING and not member.is_leaving
        return since_s is not None and is_starting and now - since_s < bound_s

    def coming(self, members: Iterable[FleetMember], now: float, bound_s: float) -> list[FleetMember]:
        return [member for member in members if self.is_coming(member, now, bound_s)]

    def newly_failed(self, members: Iterable[FleetMember], now: float, bound_s: float) -> set[str]:
        """Those of `members` that have stopped counting since this was asked last: they died, or take too long."""
        members = tuple(members)
        failed = {one.name for one in members if one.name in self._since_s and not one.is_leaving}
        failed -= {one.name for one in self.coming(members, now, bound_s)}
        new = failed - self._failed
        self._failed = (self._failed - {one.name for one in members}) | failed
        return new
