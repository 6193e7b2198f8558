"""What a planner is to know of a tensor model whose instances come and go."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.repository_config import RepositoryConfig


@dataclass(frozen=True, slots=True)
class InstanceShare:
    """`counts` has the bounds, the levels and what an instance takes of the budget."""

    model: str
    counts: InstanceCountsConfig

    @property
    def weight(self) -> float:
        return self.counts.weight

    def num_cpus(self, count: int) -> float:
        return count * self.counts.num_cpus

    def num_gpus(self, count: int) -> float:
        return count * self.counts.num_gpus


def instance_shares(repository: RepositoryConfig) -> dict[str, InstanceShare]:
    """By model. Those that are not named have as many instances as their configuration says, which take of the budget
    what an instance takes by default."""
    return {model: InstanceShare(model, counts) for model, counts in repository.instances.items()}
