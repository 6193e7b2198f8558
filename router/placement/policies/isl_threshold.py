"""Local prefill for short prompts, remote prefill for long ones unless others wait already: NVIDIA Dynamo's rule of
2025.

    remote  iff  uncached tokens > `threshold_tokens`  and  prompts waiting for prefill < `queue_limit`

Sending small prompts away does not pay: their transfer and the extra hop cost more than the prefill. Where the line
lies depends on model, hardware and load, which is why this is not the default. Of each side the least loaded.
"""

from __future__ import annotations

from slipstream.router.placement.policies.least_loaded import share_in_use, share_queued
from slipstream.router.placement.policies.policy import PlacementJob
from slipstream.router.placement.policies.ranking import RankingRule, place_by
from slipstream.router.placement.policies.shortlist import Shortlist
from slipstream.router.requests.placement_decision import Placement, PlacementReason, Wait


class IslThreshold:
    """`queue_limit` is for each prefill group."""

    name = "isl_threshold"

    def __init__(self, threshold_tokens: int, queue_limit: int) -> None:
        self._threshold_tokens = threshold_tokens
        self._queue_limit = queue_limit
        self._rule = RankingRule(
            self.name, ("share in use",), ("share queued",), share_in_use, share_queued, self._local, "long_prompt"
        )

    def place(self, job: PlacementJob, shortlist: Shortlist, now: float) -> Placement | Wait:
        return place_by(self._rule, job, shortlist, now)

    def _local(self, job: PlacementJob, num_uncached: int, shortlist: Shortlist) -> PlacementReason | None:
        if num_uncached <= self._threshold_tokens:
            return "short_prompt"
        is_busy = all(group.load.num_pending >= self._queue_limit for group in shortlist.prefills)
        return "prefill_busy" if is_busy else None
