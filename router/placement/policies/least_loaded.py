"""Where most room is: shares of slots, pages and queue in use. Prefill groups compute the prompts if there are any."""

from __future__ import annotations

from slipstream.router.placement.policies.policy import PlacementJob
from slipstream.router.placement.policies.ranking import RankingRule, place_by
from slipstream.router.placement.policies.shortlist import Shortlist
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.placement_decision import Placement, PlacementReason, Wait


def share_in_use(worker: WorkerState, job: PlacementJob, num_cached: int) -> tuple[float]:
    """Of a decode worker: the larger share of slots and pages."""
    hello, ledger = worker.hello, worker.ledger
    return (1.0 - min(ledger.free_slots / hello.max_slots, ledger.free_pages / hello.num_pages),)


def share_queued(worker: WorkerState, job: PlacementJob, num_cached: int) -> tuple[float]:
    """Of a prefill group: its queue's tokens."""
    return (1.0 - worker.ledger.free_tokens / worker.hello.max_queued_tokens,)


def always_remote(job: PlacementJob, num_uncached: int, shortlist: Shortlist) -> PlacementReason | None:
    return None


RULE = RankingRule("least_loaded", ("share in use",), ("share queued",), share_in_use, share_queued, always_remote)


class LeastLoaded:
    name = "least_loaded"

    def place(self, job: PlacementJob, shortlist: Shortlist, now: float) -> Placement | Wait:
        return place_by(RULE, job, shortlist, now)
