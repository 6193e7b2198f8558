"""What a supervisor knows of each member that it keeps, and whom it tells."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from slipstream.cluster.members import Group, Member
from slipstream.cluster.restart_policy import RestartPolicy
from slipstream.cluster.run_state import MemberStatus
from slipstream.router.addresses import Addresses
from slipstream.router.messages import Role

M = TypeVar("M", bound=Member)


class Observer(Protocol):
    """Who watches the supervisor."""

    def changed(self, member: MemberStatus, members: list[MemberStatus]) -> None:
        """Of all members one is in another state, has something else to say about it, is new, or gone."""

    def launched(self, member: MemberStatus) -> None:
        """A member has new processes."""

    def listening(self, at: Addresses) -> None:
        """The router listens, for the first time or again."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a group is drained for: to come back in `next_role`, or to leave for good. At `overdue_s` (monotonic) its
    processes are ended."""

    next_role: Role | None
    migrate: bool
    overdue_s: float


@dataclass(slots=True)
class Kept(Generic[M]):
    """A member and what is known of it. `since_s` is monotonic; `last_death` is why it ended last, "" once it serves
    again."""

    member: M
    policy: RestartPolicy
    status: MemberStatus
    since_s: float
    last_death: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    keeper: asyncio.Task[None] | None = None


@dataclass(slots=True)
class KeptGroup(Kept[Group]):
    """`nudge` wakes whoever follows it; `asked_epoch` is the connection in which its wish has been told."""

    wish: Wish | None = None
    asked_epoch: int = 0
    nudge: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_leaving(self) -> bool:
        return self.wish is not None and self.wish.next_role is None

    @property
    def is_wanted(self) -> bool:
        """It serves, or is on its way to it."""
        return not self.is_leaving and self.status.state != "failed"
