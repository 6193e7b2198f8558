"""One after the other, each side for itself, past those that have no room: what the others are compared to."""

from __future__ import annotations

from dataclasses import replace

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.placement.policies.least_loaded import always_remote
from slipstream.router.placement.policies.policy import PlacementJob
from slipstream.router.placement.policies.ranking import RankingRule, place_by
from slipstream.router.placement.policies.shortlist import Shortlist
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.placement_decision import Placement, Wait

MAX_REMEMBERED = 4096


class RoundRobin:
    """The cost of a worker is how recently it had its turn. A turn is counted when it is given; the rare one that comes
    to nothing, because the request is made to wait after all, is skipped."""

    name = "round_robin"

    def __init__(self) -> None:
        self._turns: dict[PeerId, int] = {}
        self._num_turns = 0
        self._rule = RankingRule(self.name, ("turn",), ("prefill turn",), self._turn, self._turn, always_remote)

    def place(self, job: PlacementJob, shortlist: Shortlist, now: float) -> Placement | Wait:
        found = place_by(self._rule, job, replace(shortlist, cached={}), now)
        if isinstance(found, Placement):
            self._num_turns += 1
            for worker in (found.decode, found.prefill):
                if worker is not None:
                    self._turns.pop(worker.peer, None)
                    self._turns[worker.peer] = self._num_turns
            while len(self._turns) > MAX_REMEMBERED:  # workers that have left
                del self._turns[next(iter(self._turns))]
        return found

    def _turn(self, worker: WorkerState, job: PlacementJob, num_cached: int) -> tuple[float]:
        return (float(self._turns.get(worker.peer, 0)),)
