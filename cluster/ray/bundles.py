"""The Ray resources that a cluster reserves: for each worker group, one placement group with a bundle for each of its
hosts, which is one unless the pool has several `hosts_per_group`.

The ranks that a group has on a host share a bundle there. Pools grow and shrink by whole groups; `node_choice` chooses
the nodes.
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
    """What one pool reserves: `rank` for each rank, `bundle` on each of the `num_hosts` hosts of a group. `labels` are
    what its nodes must have; those of one group have the same value of the label `shared_label`. `replicas` is the
    number of groups at the start."""

    role: Role
    rank: Resources
    bundle: Resources
    replicas: int
    labels: Mapping[str, str] = field(default_factory=dict)
    num_hosts: int = 1
    shared_label: str | None = None

    @property
    def of_group(self) -> Resources:
        """What a group reserves on all its hosts."""
        return {kind: amount * self.num_hosts for kind, amount in self.bundle.items()}

    @property
    def total(self) -> Resources:
        return {kind: amount * self.replicas for kind, amount in self.of_group.items()}

    def fills_same_room_as(self, other: PoolResources) -> bool:
        """Whether a group of this pool can be where one of the other pool is."""
        return (
            self.bundle == other.bundle
            and self.labels == other.labels
            and self.num_hosts == other.num_hosts
            and self.shared_label == other.shared_label
        )

    @property
    def words(self) -> str:
        """What a group needs, for people."""
        amounts = ", ".join(f"{amount:g} {kind}" for kind, amount in sorted(self.bundle.items()))
        labels = "".join(f", {key}={value}" for key, value in self.labels.items())
        shared = f" with the same {self.shared_label}" if self.shared_label else ""
        return amounts + labels + (f" on each of {self.num_hosts} hosts{shared}" if self.num_hosts > 1 else "")


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


def check_one_host(pools: tuple[PoolResources, ...]) -> None:
    """Raises CannotPlace if groups need several hosts."""
    for pool in pools:
        if pool.num_hosts > 1:
            raise CannotPlace(
                f"{pool.role}.hosts_per_group is {pool.num_hosts}, and a Ray of its own has one host; "
                "ray.address names one with more"
            )


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
    ranks_per_host = pool.tp // pool.hosts_per_group
    bundle = {kind: round(amount * ranks_per_host, 4) for kind, amount in rank.items()}
    if not any(bundle.values()):
        bundle = {"CPU": 0.001}
    return PoolResources(
        role,
        rank,
        bundle,
        pool.replicas,
        pool.labels,
        num_hosts=pool.hosts_per_group,
        shared_label=pool.hosts_share_label,
    )


def sum_of(bundles: list[Resources]) -> Resources:
    """The sum of what the bundles ask for, by kind."""
    total: Resources = {}
    for bundle in bundles:
        for kind, amount in bundle.items():
            total[kind] = total.get(kind, 0.0) + amount
    return total
