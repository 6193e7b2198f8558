"""Divides the workers of a cluster among its models.

    each model:  signals, fleet --> its SLO planner: is it short of workers? how many could it spare?
    some are:    what all would keep with fewer and more --> the best division of the budget --> sources of workers:
                     1. models that keep their levels without them, with room to spare     a move: seconds
                     2. the budget that is free                                            a start: a minute
                     3. models whose loss weighs less than the gain                        a move
    each model:  its SLO planner decides within the workers that it has and those that it may get

So how many workers a model needs, and in which roles, is decided as in a cluster of one model, with the same
hysteresis; here is decided from where they come. A model that gives a worker has made a change as well: it settles, and
to take that back waits, twice as long each time. A gain counts for the part of the horizon that is left after the swap,
and has to be `WORTH` more than the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetState
from slipstream.cluster.planner.change_history import ChangeHistory
from slipstream.cluster.planner.instances.instance_claims import NO_CLAIMS, InstanceClaims
from slipstream.cluster.planner.pending_starts import PendingStarts
from slipstream.cluster.planner.planner_decision import (
    PlannerDecision,
)
from slipstream.cluster.planner.shared.instance_room import InstanceRoom
from slipstream.cluster.planner.shared.joint_decision import JointDecision
from slipstream.cluster.planner.shared.model_share import ModelShare
from slipstream.cluster.planner.shared.model_view import ModelView
from slipstream.cluster.planner.slo_planner import SloPlanner
from slipstream.router.status.load_signals import Signals

SWAPS = 12.0  # times what a swap takes: over so long one has to pay
MOST_WORKERS = 1_000_000  # of one model: the budget is the limit


class BudgetPlanner:
    """See `shared_planner.SharedPlanner`. One object for the life of a cluster."""

    def __init__(self, config: PlannerConfig, shares: Sequence[ModelShare], budget: BudgetConfig) -> None:
        self._config = config
        self._budget = budget
        self._shares = {share.name: share for share in shares}
        self._planners: dict[str, SloPlanner] = {}
        self._first_total = 0
        self._starts = PendingStarts()
        self._were_short: set[str] = set()  # at the last look

    def follow(self, shares: Sequence[ModelShare]) -> None:
        """The models from now on."""
        self._shares = {share.name: share for share in shares}
        self._planners = {name: planner for name, planner in self._planners.items() if name in self._shares}

    def decide(
        self, signals: Mapping[str, Signals], fleets: Mapping[str, FleetState], now: float
    ) -> dict[str, PlannerDecision]:
        """A decision for each model that there are signals of."""
        return self.decide_beside(NO_CLAIMS, signals, fleets, now)[0]

    def decide_beside(
        self,
        claims: InstanceClaims,
        signals: Mapping[str, Signals],
        fleets: Mapping[str, FleetState],
        now: float,
    ) -> tuple[dict[str, PlannerDecision], InstanceRoom]:
        """A decision for each model, and what there is for the instances of tensor models."""
        names = [name for name in self._shares if name in signals and name in fleets]
        members = [member for name in names for member in fleets[name].members]
        came = self._starts.see(members, now)
        for name in names:
            self._follow_starts(self._planner(self._shares[name]).history, fleets[name], came, now)
        views = [self._view(self._shares[name], signals[name], fleets[name], now) for name in names]
        self._first_total = max(self._first_total, len(members))
        decision = JointDecision(self._config, self._limits(), views, self._were_short, claims)
        by_model = decision.decide()
        self._were_short = {view.name for view in views if view.is_short}
        return by_model, decision.instance_room()

    def _view(self, share: ModelShare, signals: Signals, fleet: FleetState, now: float) -> ModelView:
        return ModelView(share, self._planner(share), self._config_of(share), signals, fleet, self._starts, now)

    def _planner(self, share: ModelShare) -> SloPlanner:
        planner = self._planners.get(share.name)
        if planner is None:
            config = self._config_of(share)
            prices = replace(share.prices, is_objective=config.objective == "cost")
            planner = self._planners[share.name] = SloPlanner(
                config, prices, share.min_workers, min(config.horizon_s, SWAPS * config.swap_s)
            )
        return planner

    def _config_of(self, share: ModelShare) -> PlannerConfig:
        return replace(self._config, max_workers=MOST_WORKERS, scale_to_zero=share.min_workers == 0)

    def _follow_starts(self, history: ChangeHistory, fleet: FleetState, came: Mapping[str, float], now: float) -> None:
        """How starts of workers for a model went on since the last look."""
        for member in fleet.members:
            if member.name in came:
                history.started(came[member.name], now)
        if self._starts.newly_failed(fleet.members, now, history.start_bound_s):
            history.start_failed(now)

    def _limits(self) -> BudgetConfig:
        """The budget; where it does not limit workers, `max_workers` of the planner or as many as there were."""
        if self._budget.workers is not None:
            return self._budget
        return replace(self._budget, workers=self._config.max_workers or max(self._first_total, 1))
