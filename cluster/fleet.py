"""The worker groups of a cluster as whoever resizes it sees them: an operator, the planner, a rolling update.

The supervisor implements `FleetPort` with processes, the simulator in virtual time. Changes are begun and then go on by
themselves; `state` shows how far they are.

    add:     pending (no room yet) -> starting -> gathering, loading, warming_up -> connecting -> ready
    remove:  ready -> draining (takes nothing new, what runs there moves or ends) -> gone from the fleet
    switch:  ready -> draining -> connecting -> ready, with the other role; the process and its weights stay
    death:   any -> dead -> starting ..., in the role that it had last
    hanging: ready -> silent -> ready if it answers again, else dead
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from slipstream.router.messages import Role

FleetErrorKind = Literal["unknown", "conflict", "invalid", "unavailable"]
MemberState = Literal[
    "new",
    "pending",
    "starting",
    "gathering",
    "loading",
    "warming_up",
    "connecting",
    "ready",
    "draining",
    "silent",
    "dead",
    "stopped",
    "failed",
]
# Those of which more is to be expected shortly; who waits for room or has died may do so for long.
CHANGING = frozenset({"new", "starting", "gathering", "loading", "warming_up", "connecting", "draining"})


@dataclass(frozen=True, slots=True)
class FleetMember:
    """A worker group. `role` is the one it serves or will serve, so of a group that switches the next one.

    `since_s` is when `state` began, on the clock of whoever implements the port (the supervisor: `time.monotonic()`,
    the simulator: its own). `host`: where its processes are, "" before it has any. `is_leaving`: it is drained to end
    for good. `startup_s`: the stages of its last start, and of a switch, with their seconds.
    """

    name: str
    role: Role
    state: MemberState
    since_s: float
    host: str = ""
    version: str = ""
    detail: str = ""
    is_leaving: bool = False
    startup_s: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class FleetState:
    """`num_prefill` and `num_decode` are what is wanted: groups that serve or are on their way to it, without those
    that are leaving. `max_members`: what the machines could hold, None where that is not known (a Ray cluster that
    grows). `is_changing`: some group is in a state of CHANGING, so counts and load are about to change. `is_held`: an
    update is under way, however long it takes, and nobody else may resize."""

    members: tuple[FleetMember, ...]
    num_prefill: int
    num_decode: int
    max_members: int | None = None
    is_changing: bool = False
    is_held: bool = False

    def num(self, role: Role) -> int:
        return self.num_prefill if role == "prefill" else self.num_decode

    def member(self, name: str) -> FleetMember | None:
        return next((member for member in self.members if member.name == name), None)


class FleetError(Exception):
    """What was asked for cannot be done, and nothing has changed. `field` names the part of the question at fault."""

    def __init__(self, kind: FleetErrorKind, field: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.field = field
        self.reason = reason


class FleetPort(Protocol):
    """Resizes a cluster. Every change returns when it has been begun, and raises FleetError if it cannot be.

    Zero groups are allowed in each role: without prefill groups decode workers compute prompts themselves, without
    decode workers requests wait, for `router.dispatch.queue_timeout_s` at most.
    """

    def state(self) -> FleetState: ...

    async def add(self, role: Role, count: int = 1, version: str | None = None) -> list[str]:
        """Starts further groups, of the given model version or the newest one. Returns their names."""

    async def remove(self, name: str, *, migrate: bool = True) -> None:
        """Drains a group, then ends it for good. `migrate`: what runs there moves to others where there is room; else
        it runs on there."""

    async def switch_role(self, name: str, role: Role) -> None:
        """Drains a group and lets it come back in the other role, with the weights that it has in memory."""

    async def scale(self, role: Role, replicas: int) -> None:
        """Adds groups, or removes those that are cheapest to lose, until so many are wanted in a role."""
