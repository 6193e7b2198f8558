"""What a planner sees of the instances of a version of a tensor model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSignals:
    """`count` instances are wanted; the number `is_changing` until these serve and others are gone. `num_waiting`
    requests wait now. The other figures are counted since the version was loaded, and `at_s` is when, on the clock of
    the router: `busy_s` is how long instances have executed, all together, and `queue_s` how long the `num_executed`
    requests have waited before."""

    model: str
    version: str
    count: int
    is_changing: bool
    num_waiting: int
    at_s: float
    busy_s: float
    num_executed: int
    queue_s: float

    @property
    def key(self) -> tuple[str, str]:
        return self.model, self.version
