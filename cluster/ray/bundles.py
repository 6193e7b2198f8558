"""The Ray resources that a cluster reserves: for each worker group, one placement group with one bundle.

A bundle is on one node, and so are all ranks of a tensor-parallel group, which share their group's bundle. Pools grow
and shrink by whole groups; `spread` chooses the nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.pool_config import PoolConfig
from slipstream.router.protocol.messages import Role

Resources = dict[str, float]


@dataclass(frozen=True, slots=True)
class PoolResources:
    """What one pool reserves: `rank` for each rank, `bundle` for each group. `labels` are what its nodes must have.
    `replicas` is the number of groups at the start."""

    role: Role
    rank: Resources
    bundle: Resources
    replicas: int
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> Resources:
        return {kind: amount * self.replicas for kind, amount in self.bundle.items()}


class CannotPlace(Exception):  # noqa: N818 - reads as the sentence it carries
    """The cluster is too small for the configuration. The text is one sentence with both sizes."""


def pool_resources(config: ClusterConfig, num_gpus: float, num_ranks: int | None = None) -> tuple[PoolResources, ...]:
    """What each pool of a model reserves on a Ray cluster with so many GPUs, where so many ranks of all models share
    them; None: those of this model. Raises CannotPlace."""
    num_ranks = config.num_ranks if num_ranks is None else num_ranks
    return tuple(
        _pool(role, pool, _rank_gpus(config, role, pool, num_gpus, num_ranks)) for role, pool in config.pools()
    )


def all_pools(config: ClusterConfig, num_gpus: float) -> tuple[PoolResources, ...]:
    """The pools of all models. Raises CannotPlace."""
    return tuple(pool for alone in config.each() for pool in pool_resources(alone, num_gpus, config.num_ranks))


def check_fits(pools: tuple[PoolResources, ...], available: Resources) -> None:
    """Raises CannotPlace if the pools together want more than there is."""
    wanted = sum_of([pool.total for pool in pools])
    for kind, asked in sorted(wanted.items()):
        if asked > available.get(kind, 0.0) + 1e-6:
            by_role: dict[str, float] = {}
            for pool in pools:
                by_role[pool.role] = by_role.get(pool.role, 0.0) + pool.total.get(kind, 0.0)
            split = " + ".join(f"{role} {amount:g}" for role, amount in by_role.items())
            raise CannotPlace(f"the workers need {asked:g} {kind} ({split}) and Ray has {available.get(kind, 0.0):g}")


def _rank_gpus(config: ClusterConfig, role: Role, pool: PoolConfig, num_gpus: float, num_ranks: int) -> float:
    if pool.num_gpus is not None:
        return pool.num_gpus
    device = pool.engine.device
    if device == "cpu" or (device == "auto" and num_gpus == 0):
        return 0.0
    if num_gpus == 0:
        raise CannotPlace(f"{role}.engine.device is cuda and Ray has no GPU")
    # A fair share: two workers on one GPU get half of it each. A rank cannot use parts of two GPUs, so what matters is
    # how many ranks share one GPU: three ranks on two GPUs get halves as well, not two thirds.
    ranks_on_gpu = max(1, math.ceil(num_ranks / num_gpus))
    share = math.floor(100 / ranks_on_gpu) / 100  # in hundredths; Ray counts to 1/10000
    if share < 1 and pool.tp > 1:
        raise CannotPlace(
            f"{role}.tp is {pool.tp}, whose ranks share no GPU, and Ray has {num_gpus:g} GPU for {num_ranks} ranks"
        )
    if share < 1 and config.kv_transfer.transport == "nccl":
        raise CannotPlace(
            f"kv_transfer.transport is nccl, which needs a GPU for each rank, "
            f"and Ray has {num_gpus:g} GPU for {num_ranks} ranks"
        )
    return share


def _pool(role: Role, pool: PoolConfig, rank_gpus: float) -> PoolResources:
    rank = {"CPU": pool.num_cpus} | ({"GPU": rank_gpus} if rank_gpus else {}) | pool.resources
    # Ray refuses a bundle of nothing at all.
    bundle = {kind: round(amount * pool.tp, 4) for kind, amount in rank.items()}
    if not any(bundle.values()):
        bundle = {"CPU": 0.001}
    return PoolResources(role, rank, bundle, pool.replicas, pool.labels)


def sum_of(bundles: list[Resources]) -> Resources:
    """The sum of what the bundles ask for, by kind."""
    total: Resources = {}
    for bundle in bundles:
        for kind, amount in bundle.items():
            total[kind] = total.get(kind, 0.0) + amount
    return total
