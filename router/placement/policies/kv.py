"""Where the prefix is: NVIDIA Dynamo's cost, in pages.

    prefill_scale x (pages queued for prefill + pages of the prompt that are not cached)   where it is prefilled
    + pages in use                                                                         where it decodes

Decode workers get no credit for a prefix when a prefill group computes the prompt.
"""

from __future__ import annotations

from slipstream.router.placement.policies.estimate import queue_of
from slipstream.router.placement.policies.policy import PlacementJob
from slipstream.router.placement.policies.ranking import RankingRule, place_by
from slipstream.router.placement.policies.shortlist import Shortlist
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.placement_decision import Placement, PlacementReason, Wait


class Kv:
    """`prefill_scale` is Dynamo's `prefill_load_scale`."""

    name = "kv"

    def __init__(self, prefill_scale: float) -> None:
        self._scale = prefill_scale
        self._rule = RankingRule(
            self.name, ("pages in use",), ("pages queued", "pages uncached"), self._decode, self._prefill, _stays
        )

    def place(self, job: PlacementJob, shortlist: Shortlist, now: float) -> Placement | Wait:
        return place_by(self._rule, job, shortlist, now)

    def _decode(self, worker: WorkerState, job: PlacementJob, num_cached: int) -> tuple[float]:
        return (float(worker.hello.num_pages - worker.ledger.free_pages),)

    def _prefill(self, worker: WorkerState, job: PlacementJob, num_cached: int) -> tuple[float, float]:
        page_tokens = worker.hello.page_tokens
        queued = queue_of(worker)[0] / page_tokens
        return self._scale * queued, self._scale * (job.num_tokens - num_cached) / page_tokens


def _stays(job: PlacementJob, num_uncached: int, shortlist: Shortlist) -> PlacementReason | None:
    """A prompt whose pages are all cached but the last one is prefilled locally."""
    page_tokens = shortlist.decodes[0].hello.page_tokens
    return "cached_prefix" if num_uncached <= page_tokens < job.num_tokens else None
