"""How many instances a tensor model has, where that is not as its configuration says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

MAX_COUNT = 1024


@dataclass(frozen=True, slots=True)
class InstanceCountsConfig:
    """`count` None: as `instance_group` says. With a `max` above `min`, instances come and go with the demand between
    these bounds, beginning with `count`: so many that each is busy for `target` of the time, and fewer when these would
    have been enough for `shrink_after_s`. `count` is that of the first group that is not passive: on several GPUs, of
    each of them."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    count: int | None = None
    min: int = 1
    max: int | None = None  # null: it stays as it is
    target: float = 0.75
    shrink_after_s: float = 60.0
    queue_ms: float | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.min <= MAX_COUNT:
            raise ValueError(f"min must be 1 to {MAX_COUNT}, got {self.min}")
        if self.max is not None and not self.min <= self.max <= MAX_COUNT:
            raise ValueError(f"max must be {self.min} to {MAX_COUNT}, or null, got {self.max}")
        if self.count is not None and not self.min <= self.count <= (self.max or MAX_COUNT):
            raise ValueError(f"count must be {self.min} to {self.max or MAX_COUNT}, or null, got {self.count}")
        if not 0 < self.target <= 1:
            raise ValueError(f"target must be over 0 and at most 1, got {self.target}")
        if not 1 <= self.shrink_after_s < math.inf:
            raise ValueError(f"shrink_after_s must be at least 1 and finite, got {self.shrink_after_s}")
        for key in ("queue_ms", "weight"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{key} must be over 0 and finite, got {value}")
        for key in ("num_cpus", "num_gpus"):
            if not 0 <= getattr(self, key) < math.inf:
                raise ValueError(f"{key} must be finite and not negative, got {getattr(self, key)}")

    @property
    def is_elastic(self) -> bool:
        return self.max is not None and self.max > self.min

    def first_count(self, configured: int) -> int:
        """With how many it begins."""
        return self.within(self.count if self.count is not None else configured)

    def within(self, count: int) -> int:
        """The number nearest to this one that is allowed."""
        return max(self.min, min(count, self.max if self.max is not None else count))
