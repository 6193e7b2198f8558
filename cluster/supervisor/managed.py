"""What the supervisor knows about each of its members, and the observer that it reports to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from slipstream.cluster.state.cluster_state import MemberStatus
from slipstream.cluster.supervisor.members.members import Group, InstanceHostControl, Member
from slipstream.cluster.supervisor.restart_policy import RestartPolicy
from slipstream.router.model_files.manifest import REFUSES
from slipstream.router.process.addresses import Addresses
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.expected_workers import ExpectedWorkers

M = TypeVar("M", bound=Member)


class Observer(Protocol):
    """Watches the supervisor."""

    def changed(self, member: MemberStatus, members: list[MemberStatus]) -> None:
        """One of the members is new or gone, or its state or details have changed."""

    def wants(self, expected: Mapping[str, ExpectedWorkers]) -> None:
        """How many groups of each model are to be there has been decided, at first or anew."""

    def launched(self, member: MemberStatus) -> None:
        """A member has new processes."""

    def listening(self, at: Addresses) -> None:
        """The router listens, for the first time or again."""


@dataclass(frozen=True, slots=True)
class PendingChange:
    """Why a group is to be drained: to come back in `next_role`, to go on with another model (`moves`), or else to
    leave for good. At `overdue_s` (monotonic) its processes are killed."""

    next_role: Role | None
    migrate: bool
    overdue_s: float
    moves: bool = False


@dataclass(slots=True)
class Managed(Generic[M]):
    """A member and what is known about it. `since_s` is monotonic. `last_death` is why it last died, "" once it serves
    again."""

    member: M
    policy: RestartPolicy
    status: MemberStatus
    since_s: float
    last_death: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    supervising_task: asyncio.Task[None] | None = None

    @property
    def refuses(self) -> bool:
        """Whether it cannot come back by itself, because the files of the model are those of another version."""
        return REFUSES in self.last_death


@dataclass(slots=True)
class ManagedInstanceHost(Managed[InstanceHostControl]):
    """An instance host."""


@dataclass(slots=True)
class ManagedGroup(Managed[Group]):
    """A worker group. `nudge` wakes its follower; `asked_epoch` is the connection in which the router drained it for
    that. One that `came_later` does not decide whether the cluster comes up."""

    pending_change: PendingChange | None = None
    asked_epoch: int = 0
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    came_later: bool = False

    @property
    def is_leaving(self) -> bool:
        change = self.pending_change
        return change is not None and change.next_role is None and not change.moves

    @property
    def is_moving(self) -> bool:
        """Whether it has not left its last model yet."""
        return self.pending_change is not None and self.pending_change.moves

    @property
    def is_wanted(self) -> bool:
        """Whether the group serves or is on its way to it."""
        return not self.is_leaving and self.status.state != "failed"
