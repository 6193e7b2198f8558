"""The interface of what runs step plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan


class Executor(Protocol):
    """Runs one plan after the other. Returns a token for each sequence that samples, in the order of the plan.
    `sampling` has a row for each of them, or no rows if the plan is `greedy`."""

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens: ...
