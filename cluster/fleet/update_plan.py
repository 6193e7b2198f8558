"""The plain values of a rolling update: what it is to do, what it sees of the cluster, and the actions it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from slipstream.cluster.fleet.author import DRIVER, Author
from slipstream.router.protocol.messages import Role

# cut_short: the driver ended, and the next one knows no more than that. What served before serves again.
Phase = Literal["starting", "canary", "rolling", "done", "rolling_back", "rolled_back", "cut_short"]
ENDED: frozenset[Phase] = frozenset({"done", "rolled_back", "cut_short"})


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """How an update proceeds.

    For a while, there may be `surge` more groups of each role than wanted, and `max_unavailable` fewer may serve. With
    `canary_percent`, the new version gets that share of new requests and the update waits: for an operator or, with
    `is_automatic`, for `min_requests` ended requests and `canary_s` seconds without a finding. A new group has
    `start_timeout_s` to become ready. If there is no room for one for `no_room_s`, an old group makes room.
    """

    surge: int = 1
    max_unavailable: int = 0
    canary_percent: float | None = None
    is_automatic: bool = False
    canary_s: float = 60.0
    min_requests: int = 20
    start_timeout_s: float = 300.0
    no_room_s: float = 10.0

    def __post_init__(self) -> None:
        if self.surge < 0:
            raise ValueError(f"surge must not be negative, got {self.surge}")
        if self.max_unavailable < 0:
            raise ValueError(f"max_unavailable must not be negative, got {self.max_unavailable}")
        if self.surge == 0 and self.max_unavailable == 0:
            raise ValueError("surge must be at least 1 where max_unavailable is 0, got 0")
        if self.canary_percent is not None and not 0 < self.canary_percent < 100:
            raise ValueError(f"split must be over 0 and below 100 percent, got {self.canary_percent:g}")
        if self.is_automatic and self.canary_percent is None:
            raise ValueError("auto needs a split to look at, as in split 10")
        if not 0 <= self.canary_s < float("inf"):
            raise ValueError(f"canary_s must be finite and not negative, got {self.canary_s:g}")
        if self.min_requests < 1:
            raise ValueError(f"min_requests must be at least 1, got {self.min_requests}")
        if not 0 < self.start_timeout_s < float("inf"):
            raise ValueError(f"start_timeout_s must be over 0 and finite, got {self.start_timeout_s:g}")


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """An update from version `old` to version `new`. `wanted` is the number of groups of each role in the end,
    `initial` the number before, to which a roll-back returns."""

    old: str
    new: str
    wanted: dict[Role, int]
    initial: dict[Role, int]
    options: UpdateOptions = field(default_factory=UpdateOptions)


@dataclass(frozen=True, slots=True)
class VersionLoad:
    """What the router has counted about one version since it started."""

    num_requests: int = 0
    num_failed_attempts: int = 0
    num_first_tokens: int = 0
    ttft_s: float = 0.0
    num_ended: int = 0


@dataclass(frozen=True, slots=True)
class SetSplit:
    """Set the router's split. None: versions share in proportion to the size of their pools."""

    split: dict[str, float] | None
    reason: str


@dataclass(frozen=True, slots=True)
class AddGroup:
    role: Role
    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveGroup:
    name: str
    reason: str


UpdateAction = SetSplit | AddGroup | RemoveGroup


@dataclass(frozen=True, slots=True)
class UpdateEvent:
    """Something that happened. `at_s` is on the clock of the update's caller. `by`: who asked for it."""

    at_s: float
    phase: Phase
    text: str
    by: Author = DRIVER
