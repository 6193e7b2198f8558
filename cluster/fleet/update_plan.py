"""The plain values of a rolling update: what it is to do, what it sees of the cluster, and the actions it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from slipstream.cluster.fleet.author import DRIVER, Author
from slipstream.router.protocol.messages import Role
from slipstream.router.status.mirror_status import MirrorCounts
from slipstream.router.status.version_status import LogMoments

# cut_short: the driver ended, and the next one knows no more than that. What served before serves again.
Phase = Literal["starting", "mirror", "canary", "rolling", "done", "rolling_back", "rolled_back", "cut_short"]
ENDED: frozenset[Phase] = frozenset({"done", "rolled_back", "cut_short"})


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """How an update proceeds.

    For a while, there may be `surge` more groups of each role than wanted, and `max_unavailable` fewer may serve. With
    `canary_percent`, the new version gets that share of new requests and the update waits: for an operator or, with
    `is_automatic`, for `min_requests` ended requests and `canary_s` seconds without a finding. With `steps`, it gets
    one share after the other, in percent, and groups to match; each step is judged, and takes at least as long.
    With `mirror_percent`, it first gets copies of that share of the requests, and no others. Figures of the new version
    may be worse than those of the old one by `tolerance_percent`. A new group has
    `start_timeout_s` to become ready. If there is no room for one for `no_room_s`, an old group makes room.

    The defaults of a step are Flagger's interval (1 min) and Kayenta's number of samples and tolerance (`verdict`).
    """

    surge: int = 1
    max_unavailable: int = 0
    canary_percent: float | None = None
    is_automatic: bool = False
    canary_s: float = 60.0
    min_requests: int = 50
    start_timeout_s: float = 300.0
    no_room_s: float = 10.0
    steps: tuple[float, ...] = ()
    tolerance_percent: float = 25.0
    mirror_percent: float | None = None

    def __post_init__(self) -> None:
        if self.surge < 0:
            raise ValueError(f"surge must not be negative, got {self.surge}")
        if self.max_unavailable < 0:
            raise ValueError(f"max_unavailable must not be negative, got {self.max_unavailable}")
        if self.surge == 0 and self.max_unavailable == 0:
            raise ValueError("surge must be at least 1 where max_unavailable is 0, got 0")
        if self.canary_percent is not None and not 0 < self.canary_percent < 100:
            raise ValueError(f"split must be over 0 and below 100 percent, got {self.canary_percent:g}")
        if self.mirror_percent is not None and not 0 < self.mirror_percent <= 100:
            raise ValueError(f"mirror must be over 0 and at most 100 percent, got {self.mirror_percent:g}")
        if self.is_automatic and self.canary_percent is None and self.mirror_percent is None:
            raise ValueError("auto needs a split or a mirror to look at, as in split 10")
        if self.steps and self.canary_percent is not None:
            raise ValueError("steps and split exclude each other: the first step is the first split")
        if any(not 0 < step <= 100 for step in self.steps) or list(self.steps) != sorted(set(self.steps)):
            shown = ",".join(f"{step:g}" for step in self.steps)
            raise ValueError(f"steps must be ascending percentages, as in 5,25,50,100, got {shown}")
        if self.steps == (100.0,):
            raise ValueError("steps need one below 100 to be judged at, got 100")
        if not 0 <= self.tolerance_percent < float("inf"):
            raise ValueError(f"tolerance_percent must be finite and not negative, got {self.tolerance_percent:g}")
        if not 0 <= self.canary_s < float("inf"):
            raise ValueError(f"canary_s must be finite and not negative, got {self.canary_s:g}")
        if self.min_requests < 1:
            raise ValueError(f"min_requests must be at least 1, got {self.min_requests}")
        if not 0 < self.start_timeout_s < float("inf"):
            raise ValueError(f"start_timeout_s must be over 0 and finite, got {self.start_timeout_s:g}")

    @property
    def shares(self) -> tuple[float, ...]:
        """The new version's shares of new requests, in percent, at which it is tried one after the other; none: it is
        rolled out at once. (All of them is no share to try: then the old groups leave.)"""
        if self.steps:
            return tuple(step for step in self.steps if step < 100)
        return (self.canary_percent,) if self.canary_percent is not None else ()

    @property
    def goes_on(self) -> bool:
        """Whether the update goes on by itself at the end of a step."""
        return self.is_automatic or bool(self.steps)


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
    """What the router has counted about one version since it started. `num_errors` of the `num_ended` requests failed.
    `ttft` is of the times to the first token, `itl` of the mean times between tokens of each answer. `mirror`: the
    requests are copies, and how their answers compare."""

    num_requests: int = 0
    num_failed_attempts: int = 0
    num_ended: int = 0
    num_errors: int = 0
    ttft: LogMoments = field(default_factory=LogMoments)
    itl: LogMoments = field(default_factory=LogMoments)
    mirror: MirrorCounts | None = None


@dataclass(frozen=True, slots=True)
class SetSplit:
    """Set the router's split. None: versions share in proportion to the size of their pools."""

    split: dict[str, float] | None
    reason: str


@dataclass(frozen=True, slots=True)
class SetMirror:
    """Copy so many percent of the requests to the version, which gets no others; None: end that."""

    version: str
    percent: float | None
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


UpdateAction = SetSplit | SetMirror | AddGroup | RemoveGroup


@dataclass(frozen=True, slots=True)
class UpdateEvent:
    """Something that happened. `at_s` is on the clock of the update's caller. `by`: who asked for it."""

    at_s: float
    phase: Phase
    text: str
    by: Author = DRIVER
