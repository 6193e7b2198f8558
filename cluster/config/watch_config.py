"""How updates proceed that begin by themselves, because a new version's folder has appeared (`model.watch`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """A watched folder is looked at every `every_s`; a version is taken if it was the same at two looks. `steps`,
    `canary_s`, `min_requests` and `tolerance_percent` are those of `slipstream update`; without steps, the new version
    is rolled out at once."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    every_s: float = 10.0
    steps: tuple[float, ...] = ()
    canary_s: float = 60.0
    min_requests: int = 50
    tolerance_percent: float = 25.0

    def __post_init__(self) -> None:
        if not 0.1 <= self.every_s < math.inf:
            raise ValueError(f"every_s must be at least 0.1 and finite, got {self.every_s}")
        if any(not 0 < step <= 100 for step in self.steps) or list(self.steps) != sorted(set(self.steps)):
            raise ValueError(f"steps must be ascending percentages, as in [5, 25, 50, 100], got {list(self.steps)}")
        if self.steps == (100.0,):
            raise ValueError("steps need one below 100 to be judged at, got [100]")
        for key in ("canary_s", "tolerance_percent"):
            if not 0 <= getattr(self, key) < math.inf:
                raise ValueError(f"{key} must be finite and not negative, got {getattr(self, key)}")
        if self.min_requests < 1:
            raise ValueError(f"min_requests must be at least 1, got {self.min_requests}")
