"""Settings of the planner."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """Resizes the pools and switches roles so that requests keep `router.dispatch.slo`, or the levels of their own.

    `interval_s` (how often it looks) and `horizon_s` (over which a change has to pay, and a smaller cluster to have
    been enough) are NVIDIA Dynamo's load and throughput ticks. `target_attainment` of the requests are to keep both
    levels. Fewer workers are tried only if they are predicted to hold with `margin` more load than was seen.

    `max_workers` None: as many as run when the planner starts, so that it only switches roles, shrinks and grows back.
    `scale_to_zero` after `idle_s` without a request; the first one that waits brings workers back. `min_decode` 1 and
    `min_prefill` 0: without prefill workers decode workers compute prompts themselves.

    `start_s` and `switch_s` are what a new worker and a new role are taken to need until they have been seen. After a
    change nothing is changed for `settle_s`; each time that a change is taken back within `horizon_s`, the wait before
    the next one doubles. At most `max_step` of the workers (and at least one; twice as many where less than half of the
    target is kept, and the rest of the way without settling) switch or go at once, and at most as many as there are
    come. `class_name`
    ("module.Class", made with this configuration) is a planner of one's own.

    `objective`: of the pools that keep the levels those with the fewest workers are taken, or those that cost least by
    `price_per_hour` of their pools. Where there are several models, they divide `budget`, `min_workers` of a model says
    whether it scales to zero, and `swap_s` is what a worker is taken to need from one model to another until that has
    been seen.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    enabled: bool = False
    class_name: str | None = None
    interval_s: float = 5.0
    horizon_s: float = 180.0
    target_attainment: float = 0.9
    margin: float = 0.25
    min_prefill: int = 0
    max_prefill: int | None = None
    min_decode: int = 1
    max_decode: int | None = None
    max_workers: int | None = None
    scale_to_zero: bool = False
    idle_s: float = 300.0
    settle_s: float = 10.0
    start_s: float = 60.0
    switch_s: float = 5.0
    max_step: float = 0.25
    log_decisions: int = 1000
    objective: Literal["workers", "cost"] = "workers"
    swap_s: float = 5.0

    def __post_init__(self) -> None:
        for key in ("interval_s", "horizon_s", "idle_s"):
            if not 0 < getattr(self, key) < math.inf:
                raise ValueError(f"{key} must be over 0 and finite, got {getattr(self, key)}")
        for key in ("settle_s", "start_s", "switch_s", "swap_s", "margin"):
            if not 0 <= getattr(self, key) < math.inf:
                raise ValueError(f"{key} must be finite and not negative, got {getattr(self, key)}")
        for key in ("target_attainment", "max_step"):
            if not 0 < getattr(self, key) <= 1:
                raise ValueError(f"{key} must be over 0 and at most 1, got {getattr(self, key)}")
        for key in ("min_prefill", "min_decode"):
            if getattr(self, key) < 0:
                raise ValueError(f"{key} must not be negative, got {getattr(self, key)}")
        for key, least in (
            ("max_prefill", self.min_prefill),
            ("max_decode", max(self.min_decode, 1)),
            ("max_workers", max(self.min_prefill + self.min_decode, 1)),
        ):
            value = getattr(self, key)
            if value is not None and value < least:
                raise ValueError(f"{key} must be at least {least} or null, got {value}")
        if not 1 <= self.log_decisions <= 100_000:
            raise ValueError(f"log_decisions must be 1 to 100000, got {self.log_decisions}")
        if self.class_name is not None and not all(part.isidentifier() for part in self.class_name.split(".")):
            raise ValueError(f"class_name must be module.Class, got {self.class_name!r}")
        if self.class_name is not None and "." not in self.class_name:
            raise ValueError(f"class_name must be module.Class, got {self.class_name!r}")
