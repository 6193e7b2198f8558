"""A model of a simulated cluster that serves several."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from slipstream.router.config.router_config import SloConfig


@dataclass(frozen=True, slots=True)
class SimModelConfig:
    """`workload` null: the requests of the common workload that name this model. `requests` and the other settings that
    are null are those of all models. `split` are its workers at the start, `weight` and `min_workers` as in the
    `models` of a deployment. `price_per_hour` null: that of the profile."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: str
    workload: str | None = None
    requests: int | None = None
    profile: str | None = None
    split: str = "1"
    slo: SloConfig | None = None
    page_tokens: int | None = None
    weight: float = 1.0
    min_workers: int = 1
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise ValueError(f"name must be printable and not empty, got {self.name!r}")
        if self.requests is not None and self.requests < 1:
            raise ValueError(f"requests must be at least 1, got {self.requests}")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight must be over 0 and finite, got {self.weight}")
        if self.min_workers < 0:
            raise ValueError(f"min_workers must not be negative, got {self.min_workers}")
        if self.price_per_hour is not None and not 0 <= self.price_per_hour < math.inf:
            raise ValueError(f"price_per_hour must not be negative, got {self.price_per_hour}")
