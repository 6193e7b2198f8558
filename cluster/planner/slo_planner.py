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
from slipstream.cluster.planner.model.queueing_model import Outlook
from slipstream.cluster.planner.model.running_answers import URGENT, attainment_of
from slipstream.cluster.planner.observed_demand import ObservedDemand
from slipstream.cluster.planner.pending_starts import PendingStarts
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
from slipstream.cluster.planner.pool_prices import NO_PRICES, PoolPrices
from slipstream.router.status.load_signals import Signals

CLEARLY_SHORT = 0.8  # of the target: more than chance
HAIR = 0.01  # of the requests
WORTH = 0.05  # of the requests: roles are not switched for less, as the model is not that exact


class SloPlanner:
    """The default planner. See `planner_decision.Planner`."""

    def __init__(
        self,
        config: PlannerConfig,
        prices: PoolPrices = NO_PRICES,
        min_workers: int = 0,
        change_horizon_s: float | None = None,
    ) -> None:
        """`min_workers` of both roles together, unless the cluster scales to zero. `change_horizon_s`: over which a
        change has to pay, if not over `horizon_s`."""
        self._config = config
        self.prices = prices
        self._min_workers = min_workers
        self._demand = ObservedDemand()
        self.history = ChangeHistory(config, change_horizon_s)
        self._starts = PendingStarts()
        self._first_total = 0
        self._way: tuple[Pools, Pools] | None = None  # of an urgent change: what it made at first, and where it leads
        self._was_short = False  # at the last look the levels were predicted not to be kept
        self._num_late_looks = 0  # in a row, the latest among them, at which most of the answers that ran were late
        self._needed_all_s: float | None = None  # when no smaller cluster would have been enough

    def decide(self, signals: Signals, fleet: FleetState, now: float) -> PlannerDecision:
        """One decision. Nothing is assumed of how often it is called."""
        return self.decide_in(self.look(signals, fleet, now))

    def look(self, signals: Signals, fleet: FleetState, now: float) -> DecisionContext:
        """Takes up what is seen, once for each decision. `decide_in` decides from it."""
        self._first_total = max(self._first_total, fleet.num_prefill + fleet.num_decode)
        self._observe(signals, now)
        self._starts.see(fleet.members, now)
        num_coming = len(self._starts.coming(fleet.members, now, self.history.start_bound_s))
        fleet = replace(fleet, is_changing=fleet.is_changing or num_coming > 0)
        self.history.see(fleet, now)
        limits, pools = (
            replace(PoolLimits.of(self._config, fleet, self._first_total), min_workers=self._min_workers),
            Pools(fleet.num_prefill, fleet.num_decode),
        )
        # What does not come up takes a place and does nothing; an update may take as long as it likes.
        num_failed = (
            sum(not (one.is_leaving or self._starts.has_served(one.name)) for one in fleet.members) - num_coming
        )
        is_stuck = fleet.is_changing and self.history.is_stuck(now)
        if (is_stuck or num_failed) and not fleet.is_held:
            ready = [one.role for one in fleet.members if one.state == "ready"]
            pools = Pools(ready.count("prefill"), ready.count("decode"))
            limits = replace(limits, max_workers=limits.max_workers - (len(fleet.members) - pools.total))
        return DecisionContext(signals, fleet, now, limits, pools, self.history.start_s, self.prices)

    def decide_in(self, context: DecisionContext) -> PlannerDecision:
        """The decision within the limits of the context."""
        return (
            self._wake(context)
            or self._wait(context)
            or self._sleep(context)
            or self._within_limits(context)
            or self._plan(context)
        )

    @property
    def start_s(self) -> float:
        """How long it takes until a new worker is there, as seen so far."""
        return self.history.start_s

    @property
    def swap_s(self) -> float:
        """How long it takes until a worker of another model is there, as seen so far."""
        return self.history.swap_s

    def quiet_s(self, now: float) -> float:
        """How long there has been no request."""
        return self._demand.quiet_s(now)

    def is_settling(self, now: float) -> bool:
        """What is seen is not yet of the workers as they are."""
        return self.history.settles_s > now

    def why_not(self, context: DecisionContext, then: Pools) -> str | None:
        """Why these pools are not to be had now, though they would serve; None if they are."""
        if self.history.may_change(context.pools, then, context.now):
            return None
        return self.history.why_not(context.now)

    def ahead(self, forecast: Forecast, lead_s: float) -> float:
        """How many times what is planned for comes by the time that still more workers could be there, if each takes
        `lead_s`; at least 1."""
        return max(forecast.growth(self._demand.watch.rate(2.0 * lead_s + self._config.settle_s)), 1.0)

    def kept_lately(self, context: DecisionContext, forecast: Forecast) -> float:
        """The share of the requests that kept the levels lately; 0 while requests pile up."""
        return 0.0 if self._demand.is_behind else attainment_of(context.signals, forecast.running)

    def give(
        self, context: DecisionContext, then: Pools, why: str, actions: tuple[PlannerAction, ...] = ()
    ) -> PlannerDecision:
        """The decision to give workers to another model."""
        self._needed_all_s = context.now
        return self._change(context, "gives", why, then, actions)

    def hold(self, context: DecisionContext, reason: Reason, why: str) -> PlannerDecision:
        """Nothing is changed, for a reason that lies with other models."""
        return self._hold(context, reason, why)

    def _observe(self, signals: Signals, now: float) -> None:
        is_other_router = self._demand.see(signals, now)
        if is_other_router:
            self.history.look_again(now)
        if is_other_router or self._needed_all_s is None:
            self._needed_all_s = now

    def _wake(self, context: DecisionContext) -> PlannerDecision | None:
        """Requests wait, and there is no decode worker, not even a starting one."""
        fleet, signals = context.fleet, context.signals
        if fleet.num_decode > 0 or not signals.num_waiting:
            return None
        ready = [one.name for one in fleet.members if one.role == "prefill" and one.state == "ready"]
        action: PlannerAction
        if ready and fleet.num_prefill > self._config.min_prefill:
            action = SwitchRole(ready[0], "decode")
        else:
            action = AddWorkers("decode", context.limits.min_decode)
        why = f"{signals.num_waiting} requests wait and there is no decode worker"
        return self._change(context, "wakes", why, context.pools, (action,))

    def _wait(self, context: DecisionContext) -> PlannerDecision | None:
        """A change that is under way, or has just been made."""
        if context.fleet.is_held:
            return self._hold(context, "changing", "an update is under way")
        if context.fleet.is_changing and not self.history.is_stuck(context.now):
            return self._hold(context, "changing", "workers are on their way from one state to another")
        left_s = self.history.settles_s - context.now
        way, self._way = self._way, None
        if left_s > 0.0 and way is not None and context.pools == way[0] and context.limits.allows(way[1]):
            goal = way[1]
            then = towards(context.pools, goal, 2 * self._step(context))
            actions = actions_for(context.pools, then, context.fleet, context.signals)
            if not isinstance(actions, str):
                self._way = (then, goal) if then != goal else None
                return self._change(context, "slo", f"{goal} is where the change before was to lead", then, actions)
        if left_s > 0.0:
            return self._hold(
                context, "settling", f"what is seen is not yet of the cluster as it is: {left_s:.0f} s more"
            )
        return None

    def _sleep(self, context: DecisionContext) -> PlannerDecision | None:
        """To zero, where that is wanted and there was no request for long."""
        config = self._config
        if not context.pools.total:
            return self._hold(context, "idle", "there is no worker, and no request")
        if not config.scale_to_zero or self.quiet_s(context.now) < config.idle_s:
            return None
        names = [one.name for one in context.fleet.members if not one.is_leaving]
        why = f"no request for {self.quiet_s(context.now):.0f} s"
        return self._change(context, "idle", why, Pools(0, 0), tuple(RemoveWorker(name) for name in names))

    def _within_limits(self, context: DecisionContext) -> PlannerDecision | None:
        then = context.limits.nearest(context.pools)
        if then == context.pools or context.limits.allows(context.pools):
            return None
        then = towards(context.pools, then, self._step(context))
        actions = actions_for(context.pools, then, context.fleet, context.signals)
        if isinstance(actions, str):
            return self._hold(context, "backed_off", f"{context.pools} is outside the limits, but {actions}")
        if not self._may_add(context, actions):
            return self._hold(context, "backed_off", "workers that were added lately have not come up")
        return self._change(context, "limits", f"{context.pools} is outside the limits", then, actions)

    def _plan(self, context: DecisionContext) -> PlannerDecision:
        forecast = self.forecast(context)
        if forecast is None:
            return self._hold(context, "no_workers", "nothing has been measured yet")
        context.seen = figures(forecast, self._demand.watch.trend, self._demand.corrections) + self._priced(
            context, forecast
        )
        self._demand.correct(context, forecast, self.history.changed_s, self._config)
        is_late = forecast.running.is_late(self._config.target_attainment)
        self._num_late_looks = self._num_late_looks + 1 if is_late else 0
        with_room = context.outlook(context.pools, 1.0 + ROOM * self._config.margin)
        if is_late or with_room.attainment < self._config.target_attainment:
            return self._meet_shortage(context, forecast, with_room)
        self._was_short = False
        if self._demand.is_behind and context.signals.oldest_wait_s > context.signals.slo_ttft_s:
            self._needed_all_s = context.now
            why = f"{context.pools} should keep the levels, and requests wait: the corrections follow what is seen"
            return self._hold(context, "holds", why)
        later = forecast.growth(self._demand.watch.rate(2.0 * self._lead_s(context)))
        return self._shrink(context, (1.0 + self._config.margin) * max(later, 1.0))

    def forecast(self, context: DecisionContext) -> Forecast | None:
        """What is planned for, by which the context predicts from now on. None as long as nothing has been measured."""
        if context.forecast is None:
            context.forecast = forecast_of(
                context.signals, self._demand.corrections, self._demand.watch, self._lead_s(context)
            )
            if context.forecast is not None:
                context.predict = context.forecast.outlook
        return context.forecast

    def _priced(self, context: DecisionContext, forecast: Forecast) -> tuple[tuple[str, float], ...]:
        """Figures of what the pools cost, where that is known."""
        prices, pools = self.prices, context.pools
        goodput = context.outlook(pools).goodput_per_s
        found = (
            ("price_per_hour", prices.per_hour(pools)),
            ("cost_per_million_tokens", prices.per_million(pools, goodput, forecast.planned.osl)),
        )
        return tuple((name, round(value, 4)) for name, value in found if value is not None)

    def _meet_shortage(self, context: DecisionContext, forecast: Forecast, with_room: Outlook) -> PlannerDecision:
        """The levels are not kept, or not with room to spare: at a second look, or if it is grave, more is needed."""
        target, running = self._config.target_attainment, forecast.running
        is_late, current = running.is_late(target), context.outlook(context.pools)
        self._needed_all_s = context.now
        is_confirmed, self._was_short = self._was_short, True
        if not (is_confirmed or is_late) and with_room.attainment > CLEARLY_SHORT * target:
            why = f"{context.pools} is predicted to keep {current.attainment:.0%}, and more at the next look perhaps"
            return self._hold(context, "holds", why)
        ahead = 1.0  # roles can be switched again soon; what is started now has to last until more could be there
        if self._may_grow(context):
            ahead = self.ahead(forecast, self._lead_s(context))
        seen_attainment = self.kept_lately(context, forecast)
        late = running.in_time if is_late else None
        shortage = Shortage(current, forecast.planned.per_s, ahead, seen_attainment, late, self._num_late_looks)
        return self._grow(context, shortage)

    def _shrink(self, context: DecisionContext, factor: float) -> PlannerDecision:
        """The levels are kept. Would they be with fewer, and would they have been all the time?"""
        config, now = self._config, context.now
        assert self._needed_all_s is not None
        holding = []
        for pools in smaller(context.pools, self._step(context), context.limits):
            predicted = context.outlook(pools, factor)
            holds = predicted.attainment >= config.target_attainment
            context.note(pools, predicted, "" if holds else f"does not hold with {factor - 1.0:.0%} more load")
            if holds:
                holding.append((context.cost(pools, self.history), -predicted.attainment, pools))
        if not holding:
            self._needed_all_s = now
            return self._hold(context, "holds", f"{context.pools} keeps the levels, and nothing smaller would")
        left_s = self._needed_all_s + self.history.quiet_s(now) - now
        if left_s > 0.0:
            why = f"{context.pools} keeps the levels; {min(holding)[2]} would too, if so for {left_s:.0f} s more"
            return self._hold(context, "holds", why)
        for _, _, pools in sorted(holding, key=lambda one: one[:2]):
            actions = actions_for(context.pools, pools, context.fleet, context.signals)
            if isinstance(actions, str):
                context.reject(pools, actions)
            elif self.history.may_change(context.pools, pools, now):
                enough_s = now - self._needed_all_s
                why = f"{pools} keeps the levels with {config.margin:.0%} more load, for {enough_s:.0f} s by now"
                self._needed_all_s = now
                return self._change(context, "cheaper", why, pools, actions)
            else:
                context.reject(pools, self.history.why_not(now))
        return self._hold(context, "holds", f"{context.pools} keeps the levels")

    def _grow(self, context: DecisionContext, shortage: Shortage) -> PlannerDecision:
        """The levels are not kept: decides which pools would keep them."""
        current, late, seen = shortage.current, shortage.late, shortage.kept
        choice = choose(context, shortage, self._config, self.history)

        def kept(predicted: Outlook) -> str:
            """Of the requests, in time; where a cluster is overloaded, those that it could serve."""
            could = predicted.goodput_per_s / shortage.per_s if shortage.per_s > 0.0 else 1.0
            return f"{max(predicted.attainment, could):.0%}"

        said = f"{context.pools} is predicted to keep {kept(current)}"
        if late is not None:
            said += f", and of the answers that run {late:.0%} are in time"
        if choice is None:
            return self._hold(context, "best_there_is", f"{said}, and nothing within the limits would do better")
        goal = choice.pools
        if choice.holds and goal.total == context.pools.total and context.outlook(goal).attainment < seen + WORTH:
            # It has more room; but roles switch in seconds, and can when there is more to be won.
            context.reject(goal, "not better by more than the model may be off")
            return self._hold(context, "holds", f"{said}, {goal} {kept(context.outlook(goal))}, which is as good")
        is_urgent = min(current.attainment, seen) < URGENT * self._config.target_attainment
        then = towards(context.pools, goal, self._step(context) * (2 if is_urgent else 1), 3 if is_urgent else 1)
        is_as_good = seen >= self._config.target_attainment - HAIR and context.outlook(then).attainment < seen + WORTH
        if is_as_good and then not in (goal, context.pools):
            # What is there holds but for a hair, and half the way would be all for a while.
            context.reject(goal, f"{then}, which is the way, is no better than what is there")
            return self._hold(
                context, "holds", f"{said}, {then} {kept(context.outlook(then))}, which is the way to {goal}"
            )
        actions = actions_for(context.pools, then, context.fleet, context.signals)
        hindrance = actions if isinstance(actions, str) else self._hindrance(context, then)
        if isinstance(actions, str) or hindrance:
            context.reject(goal, hindrance)
            return self._hold(context, "backed_off", f"{said}; {goal} would do better, but {hindrance}")
        context.reject(goal, "")
        self._way = (then, goal) if is_urgent and then != goal and goal.total == context.pools.total else None
        reason: Reason = "slo" if choice.holds else "goodput"
        why = f"{said}; {goal} {kept(context.outlook(goal))}" + (
            "" if then == goal else f", of which {then} is the way"
        )
        return self._change(context, reason, why, then, actions)

    def _hindrance(self, context: DecisionContext, then: Pools) -> str:
        """Why a change has to wait for changes before it; "": it need not."""
        if context.waits and not self.history.may_change(context.pools, then, context.now):
            return self.history.why_not(context.now)
        return ""

    def _may_grow(self, context: DecisionContext) -> bool:
        return context.pools.total < context.limits.max_workers

    def _lead_s(self, context: DecisionContext) -> float:
        """How long it takes until a change has taken effect."""
        return context.grow_s if self._may_grow(context) else self.history.switch_s

    def _step(self, context: DecisionContext) -> int:
        return max_step(max(context.pools.total, 1), self._config.max_step)

    def _may_add(self, context: DecisionContext, actions: tuple[PlannerAction, ...]) -> bool:
        return self.history.may_add(context.now) or not any(isinstance(one, AddWorkers) for one in actions)

    def _hold(self, context: DecisionContext, reason: Reason, why: str) -> PlannerDecision:
        pools = context.pools
        return PlannerDecision(
            context.now, reason, why, pools.num_prefill, pools.num_decode, (), context.alternatives(), context.seen
        )

    def _change(
        self, context: DecisionContext, reason: Reason, why: str, then: Pools, actions: tuple[PlannerAction, ...]
    ) -> PlannerDecision:
        self.history.change(context.pools, then, context.fleet, context.now, is_swap=context.is_swap)
        return PlannerDecision(
            context.now, reason, why, then.num_prefill, then.num_decode, actions, context.alternatives(), context.seen
        )
