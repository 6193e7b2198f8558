"""What a planner is to know of each model that shares the budget."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.fleet.fleet_port import FleetState
from slipstream.cluster.planner.pool_options import Pools
from slipstream.cluster.planner.pool_prices import NO_PRICES, PoolPrices
from slipstream.router.protocol.messages import Role

MAX_ROOM = 10_000


@dataclass(frozen=True, slots=True)
class WorkerNeeds:
    """What a worker of one role takes: `tp` ranks, and `num_gpus` in all. A worker can move to another model or role
    only where that needs the same; `num_cpus` are only counted."""

    num_gpus: float = 0.0
    tp: int = 1
    num_cpus: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class ModelShare:
    """`weight` decides whose requests keep their levels where there are too few workers for all. The planner leaves the
    model `min_workers`; 0: none, while there are no requests."""

    name: str
    weight: float = 1.0
    min_workers: int = 1
    prefill: WorkerNeeds = WorkerNeeds()
    decode: WorkerNeeds = WorkerNeeds()
    prices: PoolPrices = NO_PRICES

    def of(self, role: Role) -> WorkerNeeds:
        return self.prefill if role == "prefill" else self.decode

    def num_gpus(self, pools: Pools) -> float:
        return pools.num_prefill * self.prefill.num_gpus + pools.num_decode * self.decode.num_gpus

    def num_cpus(self, pools: Pools) -> float:
        return pools.num_prefill * self.prefill.num_cpus + pools.num_decode * self.decode.num_cpus


@dataclass(frozen=True, slots=True)
class FreeBudget:
    """The part of the budget that no model has: workers, GPUs and CPUs; infinity where there is no limit."""

    num_workers: float
    num_gpus: float
    num_cpus: float = math.inf

    @classmethod
    def of(cls, budget: BudgetConfig, models: Iterable[tuple[ModelShare, FleetState]]) -> FreeBudget:
        """Workers that leave have their place until they are gone."""
        workers, gpus, cpus = 0, 0.0, 0.0
        for share, fleet in models:
            for member in fleet.members:
                workers += 1
                gpus += share.of(member.role).num_gpus
                cpus += share.of(member.role).num_cpus
        return cls(
            math.inf if budget.workers is None else budget.workers - workers,
            math.inf if budget.gpus is None else budget.gpus - gpus,
            math.inf if budget.cpus is None else budget.cpus - cpus,
        )

    def room(self, needs: WorkerNeeds, fleet: FleetState) -> int:
        """For how many more workers of a model, by the budget and by its machines."""
        room = min(max(self.num_workers, 0.0), self.times(needs.num_gpus, needs.num_cpus))
        if fleet.max_members is not None:
            room = min(room, max(fleet.max_members - len(fleet.members), 0))
        return int(min(room, MAX_ROOM))

    def times(self, num_gpus: float, num_cpus: float) -> float:
        """How many times these GPUs and CPUs fit into what is free."""
        room = math.inf
        for free, each in ((self.num_gpus, num_gpus), (self.num_cpus, num_cpus)):
            if each > 0.0:
                room = min(room, max(free, 0.0) / each + 1e-9)
        return room

    def missing(self, needs: WorkerNeeds) -> int:
        """How many workers of a model have to go, so that the budget is kept."""
        missing = max(-self.num_workers, 0.0)
        for free, each in ((self.num_gpus, needs.num_gpus), (self.num_cpus, needs.num_cpus)):
            if free < 0.0 < each:
                missing = max(missing, math.ceil(-free / each - 1e-9))
        return int(missing)

    def without(self, number: int, needs: WorkerNeeds) -> FreeBudget:
        """What is free once so many more workers are there."""
        return self.less(number, number * needs.num_gpus, number * needs.num_cpus)

    def less(self, num_workers: float, num_gpus: float, num_cpus: float) -> FreeBudget:
        return FreeBudget(self.num_workers - num_workers, self.num_gpus - num_gpus, self.num_cpus - num_cpus)
