"""The interfaces of what runs step plans, and of the memory that they are run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan


class PageMemory(Protocol):
    """The memory of KV pages, where it can be returned to the system."""

    def return_pages(self, page_ids: Sequence[int]) -> None:
        """Returns the memory of these pages, which are in order. They hold nothing, and no step that has begun and no
        transfer touches them. The next step that writes one takes memory for it again."""


class Executor(Protocol):
    """Runs one plan after the other. Returns a token for each sequence that samples, in the order of the plan.
    `sampling` has a row for each of them, or no rows if the plan is `greedy`."""

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens: ...
