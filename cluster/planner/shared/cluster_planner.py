"""Decides for language models and tensor models at once: the budget is divided among workers and instances.

    tensor models:    each version:   its InstancePlanner: short of instances? how many are enough?
    language models:  BudgetPlanner:  divides the budget among all; workers go where instances are worth more
    tensor models:    each version:   its InstancePlanner decides within what the division leaves to it

Workers and instances cannot turn into each other. What instances are to get from workers is reserved for them, and they
start once the workers have gone; what workers are to get, instances give first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetState
from slipstream.cluster.planner.instances.instance_claims import InstanceClaims
from slipstream.cluster.planner.instances.instance_planner import InstancePlanner
from slipstream.cluster.planner.instances.instance_share import InstanceShare
from slipstream.cluster.planner.planner_decision import PlannerDecision
from slipstream.cluster.planner.shared.budget_planner import BudgetPlanner
from slipstream.cluster.planner.shared.instance_room import InstanceRoom
from slipstream.cluster.planner.shared.model_share import MAX_ROOM, ModelShare
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.tensor_signals import TensorSignals

AS_IT_IS = InstanceCountsConfig()


class ClusterPlanner:
    """`language` divides the budget. `max_instances` of all tensor models that grow and shrink."""

    def __init__(self, config: PlannerConfig, language: BudgetPlanner, max_instances: int | None) -> None:
        self._config = config
        self._language = language
        self._max_instances = max_instances
        self._shares: Mapping[str, InstanceShare] = {}
        self._planners: dict[tuple[str, str], InstancePlanner] = {}

    def follow(self, models: Sequence[ModelShare], instances: Mapping[str, InstanceShare]) -> None:
        """The language models, and the tensor models with settings of their own, from now on."""
        self._language.follow(models)
        self._shares = instances
        for (model, _), planner in self._planners.items():
            planner.follow(self._share(model))

    def decide(
        self,
        signals: Mapping[str, Signals],
        fleets: Mapping[str, FleetState],
        tensors: Sequence[TensorSignals],
        now: float,
    ) -> dict[str, PlannerDecision]:
        """A decision for each language model, and for each version of a tensor model whose number may change."""
        claims = InstanceClaims(self._looked(tensors, now), self._max_instances)
        decisions, room = self._language.decide_beside(claims, signals, fleets, now)
        return decisions | self._of_instances(claims, room, now)

    def _looked(self, tensors: Sequence[TensorSignals], now: float) -> dict[str, InstancePlanner]:
        keys = {seen.key for seen in tensors}
        self._planners = {key: one for key, one in self._planners.items() if key in keys}
        for seen in tensors:
            planner = self._planners.get(seen.key)
            if planner is None:
                planner = self._planners[seen.key] = InstancePlanner(self._config, self._share(seen.model))
            planner.look(seen, now)
        models = [seen.model for seen in tensors]
        return {
            seen.model if models.count(seen.model) == 1 else f"{seen.model}/{seen.version}": self._planners[seen.key]
            for seen in tensors
        }

    def _share(self, model: str) -> InstanceShare:
        return self._shares.get(model) or InstanceShare(model, AS_IT_IS)

    def _of_instances(self, claims: InstanceClaims, room: InstanceRoom, now: float) -> dict[str, PlannerDecision]:
        free, num_left = room.free, claims.num_left
        decisions = {}
        elastic = {name: one for name, one in claims.planners.items() if one.share.counts.is_elastic}
        for name, one in sorted(elastic.items(), key=lambda item: item[1].served(item[1].count)):
            share = one.share
            num_more = min(max(num_left, 0), free.times(share.num_gpus(1), share.num_cpus(1)), MAX_ROOM)
            most, fair = one.num_held + int(num_more), room.fair.get(name)
            others = [needy for needy in room.needy if needy != name]
            if one.is_short and others and fair is not None:
                most = min(most, max(fair, one.count))
            decision = one.decide(most, fair if others else None, now, f"{', '.join(others)} needs more")
            decisions[name] = decision
            assert decision.num_instances is not None
            more = max(decision.num_instances - one.num_held, 0)
            free, num_left = free.less(0, share.num_gpus(more), share.num_cpus(more)), num_left - more
        return {name: decisions[name] for name in elastic}
