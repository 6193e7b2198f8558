"""What is done about the workers of all models at one moment: which models get some, and from where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.planner.instances.instance_claims import InstanceClaims
from slipstream.cluster.planner.planner_decision import (
    AddWorkers,
    MoveWorker,
    PlannerAction,
    PlannerDecision,
    Reason,
    WorkerTransfer,
)
from slipstream.cluster.planner.shared.fair_division import FairDivision
from slipstream.cluster.planner.shared.instance_room import InstanceRoom
from slipstream.cluster.planner.shared.model_share import FreeBudget
from slipstream.cluster.planner.shared.model_view import ModelView
from slipstream.cluster.planner.shared.offers import Offer, gain_of, offers


class JointDecision:
    """The decisions for all models of a cluster at one moment. One object for each."""

    def __init__(
        self,
        config: PlannerConfig,
        budget: BudgetConfig,
        views: Sequence[ModelView],
        were_short: set[str],
        claims: InstanceClaims,
    ) -> None:
        self._config, self._budget, self._views, self._were_short = config, budget, views, were_short
        self._claims = claims
        free = FreeBudget.of(budget, [(view.share, view.whole_fleet) for view in views])
        self._free = free.less(0, claims.num_gpus, claims.num_cpus)
        self._decisions: dict[str, PlannerDecision] = {}
        self._given: dict[str, list[Offer]] = {}  # by giver
        self._takers: dict[str, list[str]] = {}  # by giver
        self._fair: dict[str, int] = {}

    def decide(self) -> dict[str, PlannerDecision]:
        views = self._views
        waking = [view for view in views if view.is_waking]
        for view in views:
            view.is_wanted_elsewhere = any(one is not view for one in waking)
        needy = [view for view in views if view.is_waking or view.is_short]
        if needy or self._free.num_workers < 0 or self._free.num_cpus < 0 or self._claims.short:
            self._fair = FairDivision(self._budget, views, self._claims).numbers()
            self._free = self._free.less(0, *self._reserved())
        needy = [view for view in needy if view.is_waking or self._fair[view.name] > view.total]
        for view in sorted(needy, key=_urgency):
            if view.name not in self._given:
                self._supply(view)
        for view in views:
            if view.name in self._given:
                self._decisions[view.name] = self._give(view)
            elif view.name not in self._decisions:
                self._decisions[view.name] = self._alone(view)
        return {view.name: self._decisions[view.name] for view in views}

    def _reserved(self) -> tuple[float, float]:
        """GPUs and CPUs for the instances that are to come."""
        coming = self._claims.num_to_come(self._fair)
        gpus = sum(one.share.num_gpus(count) for one, count in coming)
        return gpus, sum(one.share.num_cpus(count) for one, count in coming)

    def instance_room(self) -> InstanceRoom:
        """Called when all models are decided."""
        gpus, cpus = self._reserved()
        needy = [view.name for view in self._views if view.is_waking or view.is_short]
        return InstanceRoom(self._free.less(0, -gpus, -cpus), self._fair, [*needy, *self._claims.short])

    def _supply(self, view: ModelView) -> None:
        """Decides for a model that is short of workers."""
        context = view.context
        wanted = max(self._fair[view.name] - view.total, 1)
        others = [one for one in self._views if one is not view and one.name not in self._decisions]
        soon = sum(max(min(one.spare(), one.left - self._fair[one.name]), 0) for one in others if not one.is_steady)
        room = self._free.room(view.share.decode, view.whole_fleet)
        num_free = min(room, max(wanted - view.num_coming, 0))
        found, rejected = offers(view, others, self._fair, wanted, num_free + view.num_coming, self._config)
        num_new = max(min(num_free, wanted - len(found) - soon - view.num_coming), 0) if view.may_start else 0
        if view.is_waking and not found:
            self._decisions[view.name] = replace(self._wake(view, num_free), transfers=tuple(rejected))
            return
        _limit(view, view.total + len(found))
        context.is_swap = bool(found)
        context.waits = not (found and view.is_grave)
        decision = view.planner.decide_in(context)
        actions: list[PlannerAction] = []
        taken: list[Offer] = []
        num_asked = sum(one.count for one in decision.actions if isinstance(one, AddWorkers))
        for action in decision.actions:
            if isinstance(action, AddWorkers):
                suitable = [one for one in found if one not in taken and one.suits(view, action.role)][: action.count]
                taken += suitable
                actions += [MoveWorker(one.name, view.name, action.role) for one in suitable]
            else:
                actions.append(action)
        for offer in found:
            if taken and offer not in taken and offer.is_spare and offer.suits(view, "decode"):
                taken.append(offer)
                actions.append(MoveWorker(offer.name, view.name, "decode"))
            elif offer not in taken:
                offer.giver.gone.discard(offer.name)
        transfers = self._transfers(view, taken)
        decision = replace(
            decision,
            why="; ".join([decision.why, *(one.why for one in transfers)]),
            num_decode=decision.num_decode + len(taken) - num_asked,
            actions=tuple(actions),
            transfers=(*transfers, *rejected),
        )
        if num_new and (view.is_grave or view.name in self._were_short):
            decision = self._start(view, decision, num_new, "slo", "the budget has room")
        self._decisions[view.name] = decision

    def _wake(self, view: ModelView, num_free: int) -> PlannerDecision:
        """Requests wait, and no model has a worker to spare."""
        why = f"{view.signals.num_waiting} requests wait and there is no decode worker"
        if num_free and not view.planner.history.may_add(view.now):
            return view.planner.hold(view.context, "backed_off", f"{why}, but workers have failed to start lately")
        if num_free:
            return self._start(view, view.planner.hold(view.context, "changing", why), 1, "wakes", "")
        return view.planner.hold(view.context, "best_there_is", f"{why}, and no other model can spare one")

    def _start(
        self, view: ModelView, decision: PlannerDecision, number: int, reason: Reason, why: str
    ) -> PlannerDecision:
        """New workers from what is free of the budget. The planner of the model sees them when they serve."""
        self._free = self._free.without(number, view.share.decode)
        said = "; ".join(text for text in (decision.why, why, f"starts {_workers(number)}") if text)
        return replace(
            decision,
            reason=reason if decision.is_hold else decision.reason,
            why=said,
            num_decode=decision.num_decode + number,
            actions=(*decision.actions, AddWorkers("decode", number)),
        )

    def _transfers(self, taker: ModelView, taken: Sequence[Offer]) -> list[WorkerTransfer]:
        """What is said of workers that change their model."""
        transfers = []
        num_before = 0
        for name in dict.fromkeys(offer.giver.name for offer in taken):
            own = [offer for offer in taken if offer.giver.name == name]
            giver, number = own[0].giver, len(own)
            gain = gain_of(taker, num_before, number, self._config)
            num_before += number
            before, after = giver.served(giver.left + number), giver.served(giver.left) if giver.left else 1.0
            loss = giver.share.weight * max(before - after, 0.0)
            why = f"{name} gives {_workers(number)} to {taker.name}: {_kept(taker, giver, num_before)}"
            transfers.append(WorkerTransfer(name, taker.name, number, round(gain, 4), round(loss, 4), why))
            self._given.setdefault(name, []).extend(own)
            self._takers.setdefault(name, []).append(why)
        return transfers

    def _give(self, view: ModelView) -> PlannerDecision:
        then = view.left_after(len(self._given[view.name]))
        assert then is not None
        return view.planner.give(view.context, then, "; ".join(self._takers[view.name]))

    def _alone(self, view: ModelView) -> PlannerDecision:
        """Within the workers that it has, or has to have; with fewer where the budget has become smaller."""
        if not view.total and view.num_coming:
            return view.planner.hold(view.context, "changing", f"{_workers(view.num_coming)} on the way")
        most = view.total
        free = self._free if self._claims.planners else replace(self._free, num_gpus=math.inf)
        if missing := free.missing(view.share.decode):
            most = max(min(most, self._fair.get(view.name, most)), most - missing)
        _limit(view, most)
        decision = view.planner.decide_in(view.context)
        lacking = view.share.min_workers - view.total - view.num_coming
        number = min(lacking, self._free.room(view.share.decode, view.whole_fleet))
        if number <= 0 or view.fleet.is_held or not view.planner.history.may_add(view.now):
            return decision
        return self._start(view, decision, number, "limits", f"it is to have {view.share.min_workers} at least")


def _limit(view: ModelView, num_workers: int) -> None:
    most = max(num_workers, 1)
    limits = view.context.limits
    view.context.limits = replace(
        limits,
        max_workers=most,
        max_prefill=min(limits.max_prefill, most),
        max_decode=min(limits.max_decode, most),
        min_workers=min(limits.min_workers, most),
    )


def _urgency(view: ModelView) -> tuple[bool, float]:
    """Those first whose requests have no worker at all, then those that lose most."""
    lost = 1.0 if view.is_waking else 1.0 - view.served(view.total)
    return not view.is_waking, -view.share.weight * lost


def _workers(number: int) -> str:
    return f"{number} worker{'s' if number > 1 else ''}"


def _kept(taker: ModelView, giver: ModelView, number: int) -> str:
    """`chat kept 62% of its requests, with 1 more 97%; draft keeps 100% with 1 less`."""
    if taker.is_waking:
        said = f"{taker.signals.num_waiting} requests wait there for a first one"
    else:
        said = (
            f"{taker.name} keeps {taker.kept(taker.total):.0%} of its requests, with {number} more "
            f"{taker.kept(taker.total + number):.0%}"
        )
    fewer = giver.total - giver.left
    if not giver.left or giver.forecast is None:
        return f"{said}; {giver.name} has had no request for {giver.planner.quiet_s(giver.now):.0f} s"
    return f"{said}; {giver.name} keeps {giver.kept(giver.left):.0%} with {fewer} less"
