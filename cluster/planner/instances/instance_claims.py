"""What the instances of tensor models take of the budget at one look, and how many more of them fit in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slipstream.cluster.planner.instances.instance_planner import InstancePlanner


class InstanceClaims:
    """`planners` by the name of what they decide for; each has looked. Of all that grow and shrink there may be
    `max_instances`; None: as many as the bounds of each allow."""

    def __init__(self, planners: Mapping[str, InstancePlanner], max_instances: int | None = None) -> None:
        self.planners = planners
        elastic = [one for one in planners.values() if one.share.counts.is_elastic]
        self.num_left = math.inf if max_instances is None else max_instances - sum(one.num_held for one in elastic)
        self.num_cpus = sum(one.share.num_cpus(one.num_held) for one in planners.values())
        self.num_gpus = sum(one.share.num_gpus(one.num_held) for one in planners.values())

    @property
    def short(self) -> Sequence[str]:
        return [name for name, one in self.planners.items() if one.is_short]

    @property
    def max_instances(self) -> float:
        """Of all, with those whose numbers are fixed."""
        return self.num_left + sum(one.num_held for one in self.planners.values())

    def choices(self, name: str) -> Sequence[int]:
        """The numbers that a version could have, up to the first that is enough."""
        one = self.planners[name]
        counts = one.share.counts
        if not counts.is_elastic or one.load is None:
            return [one.num_held]
        return range(counts.min, max(one.needed, counts.min) + 1)

    def value(self, name: str, count: int) -> float:
        one = self.planners[name]
        return one.share.weight * one.served(count)

    def counts(self) -> dict[str, int]:
        """As many instances as there are."""
        return {name: one.count for name, one in self.planners.items()}

    def num_to_come(self, fair: Mapping[str, int]) -> list[tuple[InstancePlanner, int]]:
        """How many more instances those are to get that are short of them."""
        return [(self.planners[name], max(fair.get(name, 0) - self.planners[name].num_held, 0)) for name in self.short]


NO_CLAIMS = InstanceClaims({})
