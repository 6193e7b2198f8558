"""Decides how many instances a version of a tensor model has. It has no clock and no I/O.

What keeps the levels, when and how often a number changes, and what a change that came to nothing does, is as with
pools of workers (`ChangeHistory`); `shrink_after_s` of the model takes the place of the horizon.
"""

from __future__ import annotations

from dataclasses import replace

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetMember, FleetState
from slipstream.cluster.planner.change_history import ChangeHistory
from slipstream.cluster.planner.instances.instance_load import InstanceLoad
from slipstream.cluster.planner.instances.instance_share import InstanceShare
from slipstream.cluster.planner.model.running_answers import URGENT
from slipstream.cluster.planner.planner_decision import PlannerDecision, Reason, SetInstances
from slipstream.cluster.planner.pool_options import Pools, max_step
from slipstream.router.status.tensor_signals import TensorSignals


class InstancePlanner:
    """`look` at each look, then `decide` once it is known how many instances the budget allows."""

    def __init__(self, config: PlannerConfig, share: InstanceShare) -> None:
        self._config = config
        self.share = share
        self._history = ChangeHistory(replace(config, horizon_s=share.counts.shrink_after_s))
        self.load: InstanceLoad | None = None
        self._signals: TensorSignals | None = None
        self._fleet = FleetState((), 0, 0)
        self._num_late = 0  # looks in a row at which there were too few
        self._all_needed_s = 0.0  # when as many as there are, or more, were needed last
        self._count_steady = 0  # when it changed last

    def follow(self, share: InstanceShare) -> None:
        """An operator has changed the bounds, or what is to be kept."""
        if share.counts.shrink_after_s != self.share.counts.shrink_after_s:
            self._history = ChangeHistory(replace(self._config, horizon_s=share.counts.shrink_after_s))
        self.share = share

    def look(self, signals: TensorSignals, now: float) -> None:
        before = self._signals
        if before is None or signals.count != before.count:
            self._all_needed_s = now
            self._num_late = 0
        if not signals.is_changing:
            self._count_steady = signals.count
        members = (FleetMember("", "decode", "ready", 0.0),) * (0 if signals.is_changing else signals.count)
        self._fleet = FleetState(members, 0, signals.count, None, signals.is_changing)
        self._signals = signals
        self._history.see(self._fleet, now)
        steady = before is not None and not before.is_changing and not signals.is_changing
        start_s = self._history.start_s
        self.load = InstanceLoad.between(before, signals, start_s) if before is not None and steady else None
        self._num_late = self._num_late + 1 if self.load is not None and self.needed > signals.count else 0
        if self.load is None or self.enough >= signals.count:
            self._all_needed_s = now

    @property
    def count(self) -> int:
        """How many instances are wanted now."""
        assert self._signals is not None
        return self._signals.count

    @property
    def num_held(self) -> int:
        """As many as take up room: those that are still to go, and those that are still to come."""
        assert self._signals is not None
        return max(self.count, self._count_steady) if self._signals.is_changing else self.count

    @property
    def needed(self) -> int:
        """The fewest that keep the levels; where they are not kept, one more than there are at least."""
        load, counts = self.load, self.share.counts
        if load is None:
            return self.count
        needed = load.needed(counts, self._config.target_attainment)
        level_ms = counts.queue_ms
        if level_ms is not None and load.queue_s is not None and load.num_waiting and load.queue_s * 1e3 > level_ms:
            needed = max(needed, self.count + 1)
        return counts.within(needed)

    @property
    def enough(self) -> int:
        """The fewest that would keep them with room to spare."""
        if self.load is None:
            return self.count
        factor = 1.0 + self._config.margin
        return self.share.counts.within(self.load.needed(self.share.counts, self._config.target_attainment, factor))

    def served(self, count: int) -> float:
        """The share of its requests that it serves as they are to be served, with so many instances."""
        if self.load is None:
            return 1.0 if count >= self.count else count / max(self.count, 1)
        if count >= self.needed:
            return 1.0
        kept = self.load.kept(count, self.share.counts, self._config.target_attainment)
        return min(kept, count / self.needed) if self.needed > self.load.count else kept

    @property
    def is_short(self) -> bool:
        """There have been too few at two looks in a row; at one, where less than half is kept."""
        if not self._num_late or not self.share.counts.is_elastic:
            return False
        return self._num_late > 1 or self.served(self.count) < URGENT * self._config.target_attainment

    def decide(self, most: int, fair: int | None, now: float, because: str = "") -> PlannerDecision:
        """The budget allows at most `most`; `fair`: as many as it is to have where others need what it takes, and
        `because` says which."""
        counts, history = self.share.counts, self._history
        if not counts.is_elastic:
            return self._hold("holds", "its number of instances is fixed", now)
        within = counts.within(self.count)
        if within != self.count:
            return self._change("limits", f"{counts.min} to {counts.max} instances are allowed", within, now)
        if self._fleet.is_changing and not history.is_stuck(now):
            return self._hold("changing", "instances come or go", now)
        if now < history.settles_s or self.load is None:
            return self._hold("settling", "what is seen is not of the number that it has now", now)
        if fair is not None and fair < self.count:
            return self._give(max(fair, counts.min), because, now)
        if self.is_short:
            return self._grow(most, now)
        if self.count == counts.max and self.load.kept(self.count, counts, self._config.target_attainment) < 1.0:
            return self._hold("best_there_is", f"{self.load}: as many instances as are allowed", now)
        return self._shrink(now)

    def _grow(self, most: int, now: float) -> PlannerDecision:
        history, count = self._history, self.count
        then = min(self.needed, 2 * count, most)
        said = f"{self.load}: {self.needed} would serve them in time"
        if then <= count:
            return self._hold(
                "best_there_is", f"{said}, and there is no room for more in the bounds and the budget", now
            )
        if not history.may_add(now):
            return self._hold("backed_off", f"{said}, but instances have failed to start lately", now)
        if not history.may_change(_pools(count), _pools(then), now):
            return self._hold("backed_off", f"{said}, but {history.why_not(now)}", now)
        way = "" if then == self.needed else f", of which {then} is the way"
        return self._change("slo" if then == self.needed else "goodput", said + way, then, now)

    def _give(self, fair: int, because: str, now: float) -> PlannerDecision:
        then = max(fair, self.count - max_step(self.count, URGENT))
        if then >= self.count or not self._history.may_change(_pools(self.count), _pools(then), now):
            return self._hold("holds", f"{self.load}", now)
        why = f"{because}: keeps {self.served(then):.0%} of its requests with {self.count - then} less"
        return self._change("gives", why, then, now)

    def _shrink(self, now: float) -> PlannerDecision:
        history, count, enough = self._history, self.count, self.enough
        if enough >= count:
            return self._hold("holds", f"{self.load}", now)
        left_s = self._all_needed_s + history.quiet_s(now) - now
        if left_s > 0.0:
            return self._hold("holds", f"{self.load}; {enough} would be enough, if so for {left_s:.0f} s more", now)
        then = max(enough, count - max_step(count, self._config.max_step))
        if not history.may_change(_pools(count), _pools(then), now):
            return self._hold("backed_off", f"{enough} would be enough, but {history.why_not(now)}", now)
        margin, enough_s = self._config.margin, now - self._all_needed_s
        why = f"{enough} would have been enough for {enough_s:.0f} s, with {margin:.0%} more load"
        return self._change("cheaper", why, then, now)

    def _hold(self, reason: Reason, why: str, now: float) -> PlannerDecision:
        return PlannerDecision(now, reason, why, 0, 0, (), (), self._seen(), (), self.count)

    def _change(self, reason: Reason, why: str, then: int, now: float) -> PlannerDecision:
        assert self._signals is not None
        self._history.change(_pools(self.count), _pools(then), self._fleet, now)
        self._num_late = 0
        action = SetInstances(self._signals.model, self._signals.version, then)
        return PlannerDecision(now, reason, why, 0, 0, (action,), (), self._seen(), (), then)

    def _seen(self) -> tuple[tuple[str, float], ...]:
        load = self.load
        if load is None:
            return ()
        waited = () if load.queue_s is None else (("queue_ms", round(load.queue_s * 1e3, 3)),)
        return (
            ("requests_per_s", round(load.per_s, 3)),
            ("busy_instances", round(load.busy, 3)),
            ("offered_instances", round(load.offered, 3)),
            ("request_ms", round(load.request_s * 1e3, 3)),
            ("num_waiting", float(load.num_waiting)),
            *waited,
        )


def _pools(count: int) -> Pools:
    return Pools(0, count)
