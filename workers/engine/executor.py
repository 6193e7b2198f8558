"""What runs a step plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.workers.engine.plan import SampledToken, SamplingRow, StepPlan


class Executor(Protocol):
    """Runs one plan after the other. Returns a token for each slice that samples, in the order of the slices,
    or None where the scores leave none to pick; `sampling` has a row for each of these."""

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> Sequence[SampledToken | None]: ...
