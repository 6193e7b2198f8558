"""The planner: the cheapest pools that are predicted to keep the levels, and no change that would soon be taken back.

    not changing --> settled --> load and corrections --> do the pools that are there hold?
                                    yes: would fewer workers, and would they have for `horizon_s`? --> fewer
                                    no:  the fewest that hold with room to grow, or else hold, and of so many
                                         those that bear most; or else those that serve most --> switch roles, add

They do not hold either where most of the answers that run are late, whatever is predicted (`running`). That may be a
burst's doing: for pools that would not keep half of the target either, they have to be late at the next look, too.

What keeps it from swinging: nothing is changed while a change is under way, nor before what is seen is of the cluster
as it is now; fewer workers have to have been enough, with `margin`, at every look for the whole horizon; where nothing
keeps the levels, what serves most has to serve `GAIN` more of the requests; where something does, other roles have to
keep `WORTH` more of them than the ones that there are; and each change that takes the one before it back doubles the
wait for the next, up to the horizon, so that a load which follows the planner's own delays gets few out of it.
"""

from __future__ import annotations

from dataclasses import replace

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetState
from slipstream.cluster.planner.change_history import ChangeHistory
from slipstream.cluster.planner.decision_context import DecisionContext
from slipstream.cluster.planner.forecast import Forecast, figures, forecast_of
from slipstream.cluster.planner.model.corrections import Corrections
from slipstream.cluster.planner.model.demand import DemandWatch, backlog_of, has_shifted, is_answered, local_share_of
from slipstream.cluster.planner.model.queueing_model import Outlook
from slipstream.cluster.planner.model.running_answers import URGENT, attainment_of
from slipstream.cluster.planner.planner_decision import (
    AddWorkers,
    PlannerAction,
    PlannerDecision,
    Reason,
    RemoveWorker,
    SwitchRole,
)
from slipstream.cluster.planner.pool_growth import ROOM, Shortage, choose
from slipstream.cluster.planner.pool_options import (
    PoolLimits,
    Pools,
    actions_for,
    max_step,
    smaller,
    towards,
)
from slipstream.router.status.load_signals import Signals

CLEARLY_SHORT = 0.8  # of the target: more than chance
HAIR = 0.01  # of the requests
WORTH = 0.05  # of the requests: roles are not switched for less, as the model is not that exact


class SloPlanner:
    """The default planner. See `decision.Planner`."""

    def __init__(self, config: PlannerConfig) -> None:
        self._config = config
        self._watch = DemandWatch()
        self.corrections = Corrections()
        self._history = ChangeHistory(config)
        self._router_id = ""
        self._first_total = 0
        self._busy_s: float | None = None  # when there was last something to do
        self._behind_since_s: float | None = None
        self._way: tuple[Pools, Pools] | None = None  # of an urgent change: what it made at first, and where it leads
        self._was_short = False  # at the last look the levels were predicted not to be kept
        self._num_late_looks = 0  # in a row, the latest among them, at which most of the answers that ran were late
        self._needed_all_s: float | None = None  # when no smaller cluster would have been enough

    def decide(self, signals: Signals, fleet: FleetState, now: float) -> PlannerDecision:
        """One look. Nothing is assumed of how often it is called."""
        self._first_total = max(self._first_total, fleet.num_prefill + fleet.num_decode)
        self._observe(signals, now)
        self._history.see(fleet, now)
        limits, pools = (
            PoolLimits.of(self._config, fleet, self._first_total),
            Pools(fleet.num_prefill, fleet.num_decode),
        )
        # What does not come up takes a place and does nothing; an update may take as long as it likes.
        if fleet.is_changing and not fleet.is_held and self._history.is_stuck(now):
            ready = [one.role for one in fleet.members if one.state == "ready"]
            pools = Pools(ready.count("prefill"), ready.count("decode"))
            limits = replace(limits, max_workers=limits.max_workers - (len(fleet.members) - pools.total))
        look = DecisionContext(signals, fleet, now, limits, pools)
        return (
            self._wake(look) or self._wait(look) or self._sleep(look) or self._within_limits(look) or self._plan(look)
        )

    def _observe(self, signals: Signals, now: float) -> None:
        if signals.router_id != self._router_id:  # its windows begin anew, and what it does not show was not quiet
            self._router_id = signals.router_id
            self._watch = DemandWatch()
            self._busy_s = self._needed_all_s = now
            self._behind_since_s = None
            self._history.look_again(now)
        self._watch.see(signals, now)
        if self._busy_s is None or signals.num_waiting or signals.num_running or signals.short.num_arrivals:
            self._busy_s = now
        if self._needed_all_s is None:
            self._needed_all_s = now
        if backlog_of(signals) <= 0.0:
            self._behind_since_s = None
        elif self._behind_since_s is None:
            self._behind_since_s = now

    def _wake(self, look: DecisionContext) -> PlannerDecision | None:
        """Requests wait, and there is no decode worker, not even a starting one."""
        fleet, signals = look.fleet, look.signals
        if fleet.num_decode > 0 or not signals.num_waiting:
            return None
        ready = [one.name for one in fleet.members if one.role == "prefill" and one.state == "ready"]
        action: PlannerAction
        if ready and fleet.num_prefill > self._config.min_prefill:
            action = SwitchRole(ready[0], "decode")
        else:
            action = AddWorkers("decode", look.limits.min_decode)
        why = f"{signals.num_waiting} requests wait and there is no decode worker"
        return self._change(look, "wakes", why, look.pools, (action,))

    def _wait(self, look: DecisionContext) -> PlannerDecision | None:
        """A change that is under way, or has just been made."""
        if look.fleet.is_held:
            return self._hold(look, "changing", "an update is under way")
        if look.fleet.is_changing and not self._history.is_stuck(look.now):
            return self._hold(look, "changing", "workers are on their way from one state to another")
        left_s = self._history.settles_s - look.now
        way, self._way = self._way, None
        if left_s > 0.0 and way is not None and look.pools == way[0] and look.limits.allows(way[1]):
            goal = way[1]
            then = towards(look.pools, goal, 2 * self._step(look))
            actions = actions_for(look.pools, then, look.fleet, look.signals)
            if not isinstance(actions, str):
                self._way = (then, goal) if then != goal else None
                return self._change(look, "slo", f"{goal} is where the change before was to lead", then, actions)
        if left_s > 0.0:
            return self._hold(look, "settling", f"what is seen is not yet of the cluster as it is: {left_s:.0f} s more")
        return None

    def _sleep(self, look: DecisionContext) -> PlannerDecision | None:
        """To zero, where that is wanted and there was no request for long."""
        config = self._config
        assert self._busy_s is not None
        if not look.pools.total:
            return self._hold(look, "idle", "there is no worker, and no request")
        if not config.scale_to_zero or look.now - self._busy_s < config.idle_s:
            return None
        names = [one.name for one in look.fleet.members if not one.is_leaving]
        why = f"no request for {look.now - self._busy_s:.0f} s"
        return self._change(look, "idle", why, Pools(0, 0), tuple(RemoveWorker(name) for name in names))

    def _within_limits(self, look: DecisionContext) -> PlannerDecision | None:
        then = look.limits.nearest(look.pools)
        if then == look.pools or look.limits.allows(look.pools):
            return None
        then = towards(look.pools, then, self._step(look))
        actions = actions_for(look.pools, then, look.fleet, look.signals)
        if isinstance(actions, str):
            return self._hold(look, "backed_off", f"{look.pools} is outside the limits, but {actions}")
        if not self._may_add(look, actions):
            return self._hold(look, "backed_off", "workers that were added lately have not come up")
        return self._change(look, "limits", f"{look.pools} is outside the limits", then, actions)

    def _plan(self, look: DecisionContext) -> PlannerDecision:
        forecast = forecast_of(look.signals, self.corrections, self._watch, self._lead_s(look))
        if forecast is None:
            return self._hold(look, "no_workers", "nothing has been measured yet")
        look.predict = forecast.outlook
        look.seen = figures(forecast, self._watch.trend, self.corrections)
        self._correct(look, forecast)
        is_late = forecast.running.is_late(self._config.target_attainment)
        self._num_late_looks = self._num_late_looks + 1 if is_late else 0
        with_room = look.outlook(look.pools, 1.0 + ROOM * self._config.margin)
        if is_late or with_room.attainment < self._config.target_attainment:
            return self._meet_shortage(look, forecast, with_room)
        self._was_short = False
        if self._behind_since_s is not None and look.signals.oldest_wait_s > look.signals.slo_ttft_s:
            self._needed_all_s = look.now
            why = f"{look.pools} should keep the levels, and requests wait: the corrections follow what is seen"
            return self._hold(look, "holds", why)
        later = forecast.growth(self._watch.rate(2.0 * self._lead_s(look)))
        return self._shrink(look, (1.0 + self._config.margin) * max(later, 1.0))

    def _meet_shortage(self, look: DecisionContext, forecast: Forecast, with_room: Outlook) -> PlannerDecision:
        """The levels are not kept, or not with room to spare: at a second look, or if it is grave, more is needed."""
        target, running = self._config.target_attainment, forecast.running
        is_late, current = running.is_late(target), look.outlook(look.pools)
        self._needed_all_s = look.now
        is_confirmed, self._was_short = self._was_short, True
        if not (is_confirmed or is_late) and with_room.attainment > CLEARLY_SHORT * target:
            why = f"{look.pools} is predicted to keep {current.attainment:.0%}, and more at the next look perhaps"
            return self._hold(look, "holds", why)
        ahead = 1.0  # roles can be switched again soon; what is started now has to last until more could be there
        if self._may_grow(look):
            ahead = max(forecast.growth(self._watch.rate(2.0 * self._lead_s(look) + self._config.settle_s)), 1.0)
        seen_attainment = 0.0 if self._behind_since_s is not None else attainment_of(look.signals, running)
        late = running.in_time if is_late else None
        shortage = Shortage(current, forecast.planned.per_s, ahead, seen_attainment, late, self._num_late_looks)
        return self._grow(look, shortage)

    def _correct(self, look: DecisionContext, forecast: Forecast) -> None:
        """Where what is seen is of these workers alone, and of this load: answers that finish now were begun when they
        were there."""
        if has_shifted(look.signals):
            self.corrections.doubt()
            return
        if not is_answered(look.signals):
            return
        seen, running = forecast.seen, forecast.running
        answer_s = seen.osl * look.signals.short.itl_s.mean
        since_s = look.now - self._history.changed_s - look.signals.short.span_s
        if since_s < min(answer_s, self._config.horizon_s):
            return
        behind_s = look.now - self._behind_since_s if self._behind_since_s is not None else 0.0
        is_behind = behind_s >= look.signals.short.span_s
        if self._behind_since_s is not None and not is_behind:
            return
        predicted = forecast.outlook_now(look.pools, local_share_of(look.signals))
        is_late = running.is_late(self._config.target_attainment)
        itl_s = running.gap_s * self.corrections.decode if is_late else predicted.itl_s
        self.corrections.learn(predicted, itl_s, seen.per_s, look.signals, is_behind)

    def _shrink(self, look: DecisionContext, factor: float) -> PlannerDecision:
        """The levels are kept. Would they be with fewer, and would they have been all the time?"""
        config, now = self._config, look.now
        assert self._needed_all_s is not None
        holding = []
        for pools in smaller(look.pools, self._step(look), look.limits):
            predicted = look.outlook(pools, factor)
            holds = predicted.attainment >= config.target_attainment
            look.note(pools, predicted, "" if holds else f"does not hold with {factor - 1.0:.0%} more load")
            if holds:
                holding.append((look.cost(pools, self._history), -predicted.attainment, pools))
        if not holding:
            self._needed_all_s = now
            return self._hold(look, "holds", f"{look.pools} keeps the levels, and nothing smaller would")
        left_s = self._needed_all_s + self._history.quiet_s(now) - now
        if left_s > 0.0:
            why = f"{look.pools} keeps the levels; {min(holding)[2]} would too, if so for {left_s:.0f} s more"
            return self._hold(look, "holds", why)
        for _, _, pools in sorted(holding, key=lambda one: one[:2]):
            actions = actions_for(look.pools, pools, look.fleet, look.signals)
            if isinstance(actions, str):
                look.reject(pools, actions)
            elif self._history.may_change(look.pools, pools, now):
                enough_s = now - self._needed_all_s
                why = f"{pools} keeps the levels with {config.margin:.0%} more load, for {enough_s:.0f} s by now"
                self._needed_all_s = now
                return self._change(look, "cheaper", why, pools, actions)
            else:
                look.reject(pools, self._history.why_not(now))
        return self._hold(look, "holds", f"{look.pools} keeps the levels")

    def _grow(self, look: DecisionContext, shortage: Shortage) -> PlannerDecision:
        """The levels are not kept. What would?"""
        config, history, now = self._config, self._history, look.now
        current, late, seen = shortage.current, shortage.late, shortage.kept
        choice = choose(look, shortage, config, history)

        def kept(predicted: Outlook) -> str:
            """Of the requests, in time; where a cluster is overloaded, those that it could serve."""
            could = predicted.goodput_per_s / shortage.per_s if shortage.per_s > 0.0 else 1.0
            return f"{max(predicted.attainment, could):.0%}"

        said = f"{look.pools} is predicted to keep {kept(current)}"
        if late is not None:
            said += f", and of the answers that run {late:.0%} are in time"
        if choice is None:
            return self._hold(look, "best_there_is", f"{said}, and nothing within the limits would do better")
        goal = choice.pools
        if choice.holds and goal.total == look.pools.total and look.outlook(goal).attainment < seen + WORTH:
            # It has more room; but roles switch in seconds, and can when there is more to be won.
            look.reject(goal, "not better by more than the model may be off")
            return self._hold(look, "holds", f"{said}, {goal} {kept(look.outlook(goal))}, which is as good")
        is_urgent = min(current.attainment, seen) < URGENT * config.target_attainment
        then = towards(look.pools, goal, self._step(look) * (2 if is_urgent else 1), 3 if is_urgent else 1)
        is_as_good = seen >= config.target_attainment - HAIR and look.outlook(then).attainment < seen + WORTH
        if is_as_good and then not in (goal, look.pools):
            # What is there holds but for a hair, and half the way would be all for a while.
            look.reject(goal, f"{then}, which is the way, is no better than what is there")
            return self._hold(look, "holds", f"{said}, {then} {kept(look.outlook(then))}, which is the way to {goal}")
        actions = actions_for(look.pools, then, look.fleet, look.signals)
        if isinstance(actions, str):
            look.reject(goal, actions)
            return self._hold(look, "backed_off", f"{said}; {goal} would do better, but {actions}")
        if not history.may_change(look.pools, then, now):
            look.reject(goal, history.why_not(now))
            return self._hold(look, "backed_off", f"{said}; {goal} would do better, but {history.why_not(now)}")
        look.reject(goal, "")
        self._way = (then, goal) if is_urgent and then != goal and goal.total == look.pools.total else None
        reason: Reason = "slo" if choice.holds else "goodput"
        why = f"{said}; {goal} {kept(look.outlook(goal))}" + ("" if then == goal else f", of which {then} is the way")
        return self._change(look, reason, why, then, actions)

    def _may_grow(self, look: DecisionContext) -> bool:
        return look.pools.total < look.limits.max_workers

    def _lead_s(self, look: DecisionContext) -> float:
        """How long it takes until a change has taken effect."""
        return self._history.start_s if self._may_grow(look) else self._history.switch_s

    def _step(self, look: DecisionContext) -> int:
        return max_step(max(look.pools.total, 1), self._config.max_step)

    def _may_add(self, look: DecisionContext, actions: tuple[PlannerAction, ...]) -> bool:
        return self._history.may_add(look.now) or not any(isinstance(one, AddWorkers) for one in actions)

    def _hold(self, look: DecisionContext, reason: Reason, why: str) -> PlannerDecision:
        pools = look.pools
        return PlannerDecision(
            look.now, reason, why, pools.num_prefill, pools.num_decode, (), look.alternatives(), look.seen
        )

    def _change(
        self, look: DecisionContext, reason: Reason, why: str, then: Pools, actions: tuple[PlannerAction, ...]
    ) -> PlannerDecision:
        self._history.change(look.pools, then, look.fleet, look.now)
        return PlannerDecision(
            look.now, reason, why, then.num_prefill, then.num_decode, actions, look.alternatives(), look.seen
        )
