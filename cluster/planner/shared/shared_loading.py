"""Makes the planner of a cluster of several models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ModelEntry
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.config.pool_config import PoolConfig
from slipstream.cluster.planner.planner_loading import planner_class
from slipstream.cluster.planner.pool_prices import PoolPrices
from slipstream.cluster.planner.shared.budget_planner import BudgetPlanner
from slipstream.cluster.planner.shared.cluster_planner import ClusterPlanner
from slipstream.cluster.planner.shared.model_share import ModelShare, WorkerNeeds
from slipstream.cluster.planner.shared.shared_planner import SharedPlanner


def load_shared_planner(config: PlannerConfig, shares: Sequence[ModelShare], budget: BudgetConfig) -> SharedPlanner:
    """The default one, or the class called `config.class_name`, made with these arguments. Raises ValueError."""
    if config.objective == "cost":
        for share in shares:
            if share.prices.decode is None:
                raise ValueError(f"objective: cost needs price_per_hour of the workers of {share.name}")
    if config.class_name is None:
        return BudgetPlanner(config, shares, budget)
    planner: SharedPlanner = planner_class(config.class_name)(config, shares, budget)
    return planner


def load_cluster_planner(config: ClusterConfig) -> ClusterPlanner:
    """The planner of language models and of a repository, where `class_name` names no other. Raises ValueError."""
    planner = config.planner
    language = load_shared_planner(planner, shares_of(config), config.budget)
    assert isinstance(language, BudgetPlanner), "a planner of one's own decides about workers only"
    return ClusterPlanner(planner, language, config.repository.max_instances)


def shares_of(config: ClusterConfig) -> list[ModelShare]:
    """What the configuration says of its models."""
    shares = [share_of(entry) for entry in config.entries()]
    if config.planner.scale_to_zero and not config.models:
        return [replace(share, min_workers=0) for share in shares]
    return shares


def share_of(entry: ModelEntry) -> ModelShare:
    return ModelShare(
        entry.name,
        entry.weight,
        entry.min_workers,
        _needs(entry.prefill),
        _needs(entry.decode),
        PoolPrices(entry.prefill.price_per_hour, entry.decode.price_per_hour),
    )


def _needs(pool: PoolConfig) -> WorkerNeeds:
    """GPUs that are not in the configuration are one for each rank at most; a budget of GPUs counts them so."""
    return WorkerNeeds(pool.tp * (pool.num_gpus or 0.0), pool.tp, pool.tp * pool.num_cpus)
