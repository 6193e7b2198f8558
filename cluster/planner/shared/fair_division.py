"""How many workers and instances each model should have, where the budget is too small for all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.planner.instances.instance_claims import InstanceClaims
from slipstream.cluster.planner.shared.division import divide
from slipstream.cluster.planner.shared.model_share import FreeBudget
from slipstream.cluster.planner.shared.model_view import ModelView
from slipstream.cluster.planner.shared.share_options import instance_options, worker_options
from slipstream.cluster.planner.slo_planner import WORTH


@dataclass(frozen=True, slots=True)
class FairDivision:
    """Of `budget`, which limits the workers, among the language models of `views` and the tensor models of `claims`."""

    budget: BudgetConfig
    views: Sequence[ModelView]
    claims: InstanceClaims

    def numbers(self) -> dict[str, int]:
        """By model: what it needs, by weight where there is too little for all. Of the workers that there are beyond
        that, as many as make all models bear the same multiple of their load."""
        fair = self._needed()
        left = sum(view.total - fair[view.name] for view in self.views)
        for _ in range(left):
            least = min(self.views, key=lambda view: (view.bears(fair[view.name]), -view.share.weight))
            if math.isinf(least.bears(fair[least.name])):
                break
            fair[least.name] += 1
            if not self._fits(fair):
                fair[least.name] -= 1
                break
        return fair if self._is_worth(fair) else {**fair, **self.claims.counts()}

    def _needed(self) -> dict[str, int]:
        most = self.budget.workers
        assert most is not None
        options = {view.name: worker_options(view, most) for view in self.views}
        options |= {name: instance_options(self.claims, name) for name in self.claims.planners}
        gpus, cpus = (math.inf if limit is None else limit for limit in (self.budget.gpus, self.budget.cpus))
        chosen = divide(options, most, gpus, cpus, self.claims.max_instances)
        if chosen is None:  # even the least is too much: each keeps what it has
            return {view.name: view.total for view in self.views} | self.claims.counts()
        return {name: option.num_workers + option.num_instances for name, option in chosen.items()}

    def _is_worth(self, fair: Mapping[str, int]) -> bool:
        """What instances get from workers, or workers from instances, has to serve `WORTH` of the requests more."""
        claims = self.claims
        if not claims.planners:
            return True
        gain = sum(
            claims.value(name, fair[name]) - claims.value(name, count) for name, count in claims.counts().items()
        )
        for view in self.views:
            before, then = (
                view.served(number) if number else float(view.is_idle) for number in (view.total, fair[view.name])
            )
            gain += view.share.weight * (then - before)
        return gain > WORTH

    def _fits(self, fair: Mapping[str, int]) -> bool:
        """Beside the instances. Where there are none, workers may stay as they are."""
        if not self.claims.planners:
            return True
        free = FreeBudget.of(self.budget, ())
        for view in self.views:
            pools = view.best_split(fair[view.name])
            free = free.less(0, view.share.num_gpus(pools), view.share.num_cpus(pools))
        for name, one in self.claims.planners.items():
            free = free.less(0, one.share.num_gpus(fair[name]), one.share.num_cpus(fair[name]))
        return min(free.num_gpus, free.num_cpus) > -1e-9
