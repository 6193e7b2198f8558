"""What the models of a cluster divide among themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    """What the models divide: worker groups, GPUs and CPUs of the whole cluster, and the host memory for KV pages of
    each host. GPUs and CPUs are also for the instances of tensor models. None: no limit but that of the machines."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    workers: int | None = None
    gpus: float | None = None
    memory_gib: float | None = None
    cpus: float | None = None

    @property
    def memory_bytes(self) -> int | None:
        """`memory_gib` in bytes."""
        return None if self.memory_gib is None else int(self.memory_gib * 2**30)

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1 or null, got {self.workers}")
        for key in ("gpus", "memory_gib", "cpus"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{key} must be over 0 and finite, or null, got {value}")
