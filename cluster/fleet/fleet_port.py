"""The worker groups of a cluster, as seen by those who resize it: operators, the planner, rolling updates.

`ClusterFleet` implements `FleetPort` with processes, the simulator implements it in virtual time. A call begins a
change, which then proceeds by itself; `state` shows how far it has come.

    add:     pending (no room yet) -> starting -> gathering, loading, warming_up -> connecting -> ready
    remove:  ready -> draining (takes nothing new; what runs there moves or ends) -> no longer in the fleet
    switch:  ready -> draining -> connecting -> ready, in the other role; the process and its weights stay
    death:   any -> dead -> starting ..., in its latest role
    hanging: ready -> silent -> ready if it answers again, else dead
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from slipstream.router.protocol.messages import Role

FleetErrorKind = Literal["unknown", "conflict", "invalid", "unavailable"]
MemberState = Literal[
    "new",
    "pending",
    "starting",
    "gathering",
    "freeing",
    "fetching",
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
# States that will soon be followed by another one. (A group that waits for room, or is dead, may stay so for long.)
CHANGING = frozenset(
    ("new", "starting", "gathering", "freeing", "fetching", "loading", "warming_up", "connecting", "draining")
)


@dataclass(frozen=True, slots=True)
class FleetMember:
    """A worker group. `role` is the one that it serves or, if it is starting or switching, will serve.

    `since_s` is when `state` began, on the clock of the implementation (`time.monotonic()`, or that of the simulator).
    `host` is where its processes are ("" before it has any). `is_leaving`: it is being drained to end for good.
    `startup_s` are the stages of its last start or switch, with their seconds. `model`: the name of the model that it
    serves or will serve; "" where the cluster serves one.
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
    model: str = ""


@dataclass(frozen=True, slots=True)
class FleetState:
    """All groups. `num_prefill` and `num_decode` are the wanted numbers: groups that serve or are on their way to it,
    without those that are leaving. `max_members` is how many the machines could hold; None if that is not known (a Ray
    cluster that grows). `is_changing`: some group is in a state of CHANGING, so counts and load are about to change.
    `is_held`: an update is under way, and until it ends no other caller may resize."""

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

    def of_version(self, version: str) -> list[FleetMember]:
        """The groups of a version that are not leaving, whether or not they serve already."""
        return [member for member in self.members if member.version == version and not member.is_leaving]

    def num_ready(self, version: str, role: Role) -> int:
        """The groups of a version that serve in a role and are not leaving."""
        return sum(member.role == role and member.state == "ready" for member in self.of_version(version))


class FleetError(Exception):
    """The change is impossible, and nothing has been changed. `field` names the argument at fault."""

    def __init__(self, kind: FleetErrorKind, field: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.field = field
        self.reason = reason


class FleetPort(Protocol):
    """Resizes a cluster. Every call returns when its change has begun, and raises FleetError if it cannot begin.

    Each role may have zero groups: without prefill groups, decode workers compute prompts themselves; without decode
    workers, requests wait, for `router.dispatch.queue_timeout_s` at most.
    """

    def state(self) -> FleetState: ...

    async def add(self, role: Role, count: int = 1, version: str | None = None) -> list[str]:
        """Starts further groups, of the given model version or the newest one. Returns their names."""

    async def remove(self, name: str, *, migrate: bool = True) -> None:
        """Drains a group, then ends it for good. With `migrate`, its running sequences move to others that have room;
        otherwise they run to their end there."""

    async def switch_role(self, name: str, role: Role) -> None:
        """Drains a group and lets it come back in the other role, with the weights that it has in memory."""

    async def scale(self, role: Role, replicas: int) -> None:
        """Adds groups to a role, or removes those that are cheapest to lose, until `replicas` are wanted."""
