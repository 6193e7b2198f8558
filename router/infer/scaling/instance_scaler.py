"""Decides how many instances versions have, from how many of them were busy. It has no clock and no I/O.

What is needed is as many as would be busy for `target` of the time; one more than there are where all are busy and
requests wait. A version grows when more has been needed for `GROW_AFTER_S` without a break, and shrinks when fewer were
enough for `shrink_after_s`, even with a tenth more load: so a load that stays the same changes nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.router.config.instance_counts_config import InstanceCountsConfig

GROW_AFTER_S = 3.0
PAUSE_S = 30.0  # after an instance that could not start
MARGIN = 0.1  # of load, with which fewer instances have to be enough
SATURATED = 0.95
VersionKey = tuple[str, str]  # a model and its version


@dataclass(frozen=True, slots=True)
class InstanceDemand:
    """Since the last look: of `count` instances so many were `busy` on average; `num_waiting` requests wait."""

    count: int
    busy: float
    num_waiting: int


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    version: VersionKey
    before: int
    after: int
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Need:
    at_s: float
    least: int
    with_margin: int


@dataclass(slots=True)
class Needs:
    """The needs of one version at the looks since its last change."""

    looks: deque[Need] = field(default_factory=deque)
    paused_until_s: float = 0.0

    def add(self, need: Need, keep_s: float) -> None:
        """Of the looks before the last `keep_s` one is kept, which shows that these were seen from their beginning."""
        self.looks.append(need)
        while len(self.looks) > 1 and need.at_s - self.looks[1].at_s >= keep_s:
            self.looks.popleft()

    def spans(self, seconds: float) -> bool:
        return bool(self.looks) and self.looks[-1].at_s - self.looks[0].at_s >= seconds

    def least(self, seconds: float) -> int:
        """What was needed at each look of the last `seconds`."""
        return min(need.least for need in self._last(seconds))

    def most(self, seconds: float) -> int:
        """What would have been enough, with the margin."""
        return max(need.with_margin for need in self._last(seconds))

    def _last(self, seconds: float) -> list[Need]:
        since_s = self.looks[-1].at_s - seconds
        return [need for need in self.looks if need.at_s >= since_s]


class InstanceScaler:
    """`counts` has the bounds of the models that grow and shrink. All their versions together have at most `budget`
    instances, but for the `min` of each; where it is spent, a version that has more than it needs gives one to the one
    that lacks most."""

    def __init__(self, counts: Mapping[str, InstanceCountsConfig], budget: int | None = None) -> None:
        self._counts = counts
        self._budget = budget
        self._needs: dict[VersionKey, Needs] = {}

    def look(
        self, now: float, demands: Mapping[VersionKey, InstanceDemand], num_others: int = 0
    ) -> list[ScaleDecision]:
        """`demands` has the versions that are not changing; those that are have `num_others` instances. Each version is
        in at most one decision."""
        for version in self._needs.keys() - demands.keys():
            self._needs[version].looks.clear()
        for version, demand in demands.items():
            self._note(now, version, demand)
        decisions = [one for one in (self._shrunk(now, *item) for item in demands.items()) if one is not None]
        shrunk = {decision.version for decision in decisions}
        spent = sum(demand.count for demand in demands.values()) + num_others
        others = {version: demand for version, demand in demands.items() if version not in shrunk}
        decisions += self._grown(now, others, None if self._budget is None else self._budget - spent)
        for decision in decisions:
            self._needs[decision.version].looks.clear()
        return decisions

    def failed(self, version: VersionKey, now: float) -> None:
        """An instance could not start: no further one is tried for a while."""
        self._needs.setdefault(version, Needs()).paused_until_s = now + PAUSE_S

    def forget(self, version: VersionKey) -> None:
        self._needs.pop(version, None)

    def _note(self, now: float, version: VersionKey, demand: InstanceDemand) -> None:
        config = self._counts[version[0]]
        least = math.ceil(demand.busy / config.target - 1e-9)
        if demand.num_waiting and demand.busy >= SATURATED * demand.count:
            least = max(least, demand.count + 1)
        margin = max(least, math.ceil(demand.busy * (1 + MARGIN) / config.target - 1e-9))
        need = Need(now, config.within(least), config.within(margin))
        self._needs.setdefault(version, Needs()).add(need, max(GROW_AFTER_S, config.shrink_after_s))

    def _shrunk(self, now: float, version: VersionKey, demand: InstanceDemand) -> ScaleDecision | None:
        config, needs = self._counts[version[0]], self._needs[version]
        if config.max is not None and demand.count > config.max:
            return ScaleDecision(version, demand.count, config.max, "above its max", now)
        if not needs.spans(config.shrink_after_s):
            return None
        enough = needs.most(config.shrink_after_s)
        if enough >= demand.count:
            return None
        reason = f"{enough} were enough for {config.shrink_after_s:g} s"
        return ScaleDecision(version, demand.count, enough, reason, now)

    def _grown(self, now: float, demands: Mapping[VersionKey, InstanceDemand], room: int | None) -> list[ScaleDecision]:
        wanted: dict[VersionKey, int] = {}
        for version, demand in demands.items():
            needs = self._needs[version]
            if needs.spans(GROW_AFTER_S) and now >= needs.paused_until_s:
                wanted[version] = min(needs.least(GROW_AFTER_S), 2 * demand.count)
        decisions = []
        lacking = [version for version, count in wanted.items() if count > demands[version].count]
        for version in sorted(lacking, key=lambda one: wanted[one] / demands[one].count, reverse=True):
            demand = demands[version]
            added = wanted[version] - demand.count
            if room is not None:
                added = min(added, max(room, 0))
                room -= added
            if added:
                reason = f"{demand.busy:.1f} of {demand.count} busy, {demand.num_waiting} requests wait"
                decisions.append(ScaleDecision(version, demand.count, demand.count + added, reason, now))
        if lacking and not decisions:
            return self._given(now, {one: demands[one] for one in demands if one not in lacking}, lacking[0])
        return decisions

    def _given(self, now: float, demands: Mapping[VersionKey, InstanceDemand], to: VersionKey) -> list[ScaleDecision]:
        """The budget is spent: who has most to spare gives one, which the next look gives away."""
        spare = {
            version: demand.count - self._needs[version].most(GROW_AFTER_S)
            for version, demand in demands.items()
            if self._needs[version].spans(GROW_AFTER_S)
        }
        giver = max(spare, key=lambda version: spare[version], default=None)
        if giver is None or spare[giver] < 1:
            return []
        count = demands[giver].count
        return [ScaleDecision(giver, count, count - 1, f"{to[0]} needs an instance more", now)]
