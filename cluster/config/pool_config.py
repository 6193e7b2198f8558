"""The workers of one role, as the configuration describes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from slipstream.workers.config.worker_config import EngineConfig

MAX_REPLICAS = 1_000  # because one driver starts and watches them all


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The workers of one role: `replicas` groups of `tp` ranks, with one process per rank. There may be none: without
    prefill groups, decode workers compute prompts; without decode workers, requests wait until there is one. The ranks
    of a group are on `hosts_per_group` hosts, as many on each; those hosts have the same value of the label
    `hosts_share_label`, such as a rack.

    `num_cpus` and `num_gpus` are what a rank reserves from Ray. Reserving CPUs does not pin anything; it only bounds
    how many ranks Ray puts on a host, and the small default lets a laptop hold a cluster. `num_gpus` None: a fair share
    of the GPUs that exist, at most one per rank. `resources` are further resources that a rank reserves, by the names
    given to `ray start --resources`. `labels` are what a host must have of `ray start --labels`, each value in the
    syntax of Ray's selectors (`a`, `!a`, `in(a, b)`). `engine` holds the settings that differ from the shared ones.
    `max_queued_tokens` is how many uncomputed prompt tokens a prefill group accepts. `price_per_hour` is what a group
    costs, in any currency; null: that is not known.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    replicas: int = 1
    tp: int = 1
    hosts_per_group: int = 1
    hosts_share_label: str | None = None
    num_cpus: float = 0.1
    num_gpus: float | None = None
    resources: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    max_queued_tokens: int = 8192
    engine: EngineConfig = field(default_factory=EngineConfig)
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.replicas <= MAX_REPLICAS:
            raise ValueError(f"replicas must be from 0 to {MAX_REPLICAS}, got {self.replicas}")
        for key in ("tp", "hosts_per_group", "max_queued_tokens"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        if self.tp % self.hosts_per_group:
            raise ValueError(f"hosts_per_group must divide tp, which is {self.tp}, got {self.hosts_per_group}")
        if self.hosts_share_label is not None and (not self.hosts_share_label or self.hosts_per_group == 1):
            raise ValueError(
                f"hosts_share_label must be a label of groups with several hosts_per_group, or null, "
                f"got {self.hosts_share_label!r}"
            )
        if not (self.num_cpus >= 0 and math.isfinite(self.num_cpus)):
            raise ValueError(f"num_cpus must be finite and not negative, got {self.num_cpus}")
        price = self.price_per_hour
        if price is not None and not 0 <= price < math.inf:
            raise ValueError(f"price_per_hour must be finite and not negative, got {price}")
        for kind, amount in self.resources.items():
            if kind in ("CPU", "GPU", "memory", "object_store_memory"):
                raise ValueError(f"resources must not name {kind}; CPUs and GPUs are num_cpus and num_gpus")
            if not (amount > 0 and math.isfinite(amount)):
                raise ValueError(f"resources.{kind} must be positive and finite, got {amount}")
        for label, wanted in self.labels.items():
            if not label or not wanted:
                raise ValueError(f"labels must have names and values, got {label!r}: {wanted!r}")
        gpus = self.num_gpus
        if gpus is not None:
            if not (gpus >= 0 and math.isfinite(gpus)):
                raise ValueError(f"num_gpus must be finite and not negative, got {gpus}")
            if gpus > 1 and gpus != int(gpus):
                raise ValueError(f"num_gpus must be a whole number above 1, got {gpus}")
            if self.tp > 1 and 0 < gpus < 1:
                raise ValueError(f"num_gpus must be 0, 1 or more with tp {self.tp}: ranks share no GPU; got {gpus}")
