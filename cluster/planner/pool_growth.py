"""Which pools to have where those that are there do not keep the levels.

Of pools that are predicted to keep them: those with room to grow before those that barely do, then the fewest workers
(or those that cost least), then those that bear the largest multiple of the load. Where none are, those that serve most
in time, if that is clearly more than now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.planner.change_history import ChangeHistory
from slipstream.cluster.planner.decision_context import DecisionContext
from slipstream.cluster.planner.model.queueing_model import Outlook
from slipstream.cluster.planner.pool_options import Pools, candidates

GAIN = 0.1  # of the requests have to be served in time that would not be, where nothing keeps the levels
ROOM = 0.4  # of the margin: so much more load has to be bearable, too, or the next worker would come too late
ALIKE = 0.02  # attainments that differ by less are the same
ROOMS = (1.25, 1.5, 2.0, 3.0, 5.0, 8.0)  # times as much load: where roles are switched, to the split that bears most
HARDLY_ANY = 0.5  # of the target: pools that would keep so little are no way out of what may be a burst
RANK_NOT_HELD = 2.0


@dataclass(frozen=True, slots=True)
class Shortage:
    """How far the pools that are there fall short. `per_s` requests a second are planned for, and `ahead` times as many
    have to be bearable by the time that more workers could be there. `seen_attainment` is what was kept lately; `late`
    the share of the running answers in time where most are late, and None where they are not, at `num_late_looks` looks
    in a row."""

    current: Outlook
    per_s: float
    ahead: float
    seen_attainment: float
    late: float | None
    num_late_looks: int

    @property
    def kept(self) -> float:
        """Of the requests. Near saturation a queue that has not built up yet may never: what is seen to hold is not
        left for a guess. But answers that are late now say more than any prediction."""
        return self.late if self.late is not None else max(self.current.attainment, self.seen_attainment)

    @property
    def served_per_s(self) -> float:
        """Requests a second that are served in time."""
        if self.late is not None:
            return self.current.goodput_per_s
        return max(self.current.goodput_per_s, self.seen_attainment * self.per_s)


@dataclass(frozen=True, slots=True)
class GrowthChoice:
    """The pools to grow to. `holds`: they are predicted to keep the levels."""

    pools: Pools
    holds: bool


def choose(
    context: DecisionContext, shortage: Shortage, config: PlannerConfig, history: ChangeHistory
) -> GrowthChoice | None:
    """The best pools with as many workers or more, noting in `context` what speaks against the others. None: there are
    none that would do better."""
    best: tuple[tuple[float, ...], Pools] | None = None
    may_add = history.may_add(context.now)
    for pools in candidates(context.pools, context.limits):
        if pools == context.pools or pools.total < context.pools.total:
            continue
        rank = _rank(context, pools, shortage, config, history, may_add)
        if rank is None or (shortage.kept >= config.target_attainment and rank[0] > 0.0):
            continue  # no better than what is there, which holds barely, too
        if best is None or rank < best[0]:
            best = rank, pools
    return GrowthChoice(best[1], best[0][0] < RANK_NOT_HELD) if best is not None else None


def _rank(
    context: DecisionContext,
    pools: Pools,
    shortage: Shortage,
    config: PlannerConfig,
    history: ChangeHistory,
    may_add: bool,
) -> tuple[float, ...] | None:
    """How good these pools are: the lower, the better. None if they are out of the question."""
    predicted, cost, per_s = context.outlook(pools), context.cost(pools, history), shortage.per_s
    if pools.total > context.pools.total and not may_add:
        context.note(pools, predicted, "workers that were added lately have not come up")
        return None
    if predicted.attainment >= config.target_attainment:
        room = (1.0 + 1.25 * ROOM * config.margin) * shortage.ahead
        with_room = context.outlook(pools, room).attainment >= config.target_attainment
        bears = _bears(context, pools, config)
        if (
            shortage.late is not None
            and pools.total == context.pools.total
            and bears <= _bears(context, context.pools, config)
        ):
            context.note(pools, predicted, "answers are late, and it bears no more than what is there")
            return None
        context.note(pools, predicted, "more workers or changes than needed" if with_room else "holds, but barely")
        return 0.0 if with_room else 1.0, context.prices.size(pools), -bears, cost, -predicted.attainment
    if predicted.goodput_per_s < shortage.served_per_s + GAIN * per_s or per_s <= 0.0:
        context.note(pools, predicted, "serves no more than what is there")
        return None
    if shortage.num_late_looks == 1 and predicted.goodput_per_s < HARDLY_ANY * config.target_attainment * per_s:
        context.note(pools, predicted, "does not keep the levels, and answers are late only since this look")
        return None
    context.note(pools, predicted, "does not keep the levels")
    return RANK_NOT_HELD, -round(math.log(predicted.goodput_per_s) / ALIKE), cost


def _bears(context: DecisionContext, pools: Pools, config: PlannerConfig) -> float:
    """How many times the present load these pools bear."""
    bears = 1.0
    for room in ROOMS:
        if context.outlook(pools, room).attainment < config.target_attainment:
            break
        bears = room
    return bears
