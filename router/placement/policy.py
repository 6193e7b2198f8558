"""What a placement policy is: a function of a request and a bounded number of workers.

The dispatcher asks it for each waiting request and tells it nothing afterwards; all it knows of a worker is in its
`WorkerState` (credits, load, service times) and all it knows of the request in the `Job`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slipstream.router.placement.decision import Placement, PlacementReason, Wait
from slipstream.router.placement.output_length import OutputForecast
from slipstream.router.placement.shortlist import Shortlist
from slipstream.router.roster import WorkerState


@dataclass(slots=True)
class Job:
    """A request to be placed. `waited_s` is since it came. `remaining_tokens` is the output still to be expected.

    `local_max_tokens` is the line that somebody has drawn: up to so many tokens it stays local, over it goes to a
    prefill group. None: nobody has. `may_wait`: it may be kept for a better worker while another has room.
    `num_waiting_before` requests wait that way already. `placed_on` is the worker whose load has this request in it.
    """

    num_tokens: int
    forecast: OutputForecast
    remaining_tokens: float
    ttft_slo_s: float
    itl_slo_s: float
    waited_s: float = 0.0
    local_max_tokens: int | None = None
    may_wait: bool = True
    num_waiting_before: int = 0
    placed_on: WorkerState | None = None

    def line(self, shortlist: Shortlist) -> PlacementReason | None:
        """Why prefill has to be local, or has to be remote; None if that is open.

        A line that is drawn counts all tokens here: what the router believes to be cached may be expected only, and a
        line is there to be kept. When a decode worker has reserved and says what it has, the line is applied again."""
        if self.local_max_tokens is not None and self.num_tokens <= self.local_max_tokens:
            return "short_prompt"
        if not shortlist.prefills:
            return shortlist.no_prefill or "no_prefill_group"
        return "long_prompt" if self.local_max_tokens is not None else None


class PlacementPolicy(Protocol):
    """`place` looks at the workers of the shortlist only, which has at least one decode worker."""

    @property
    def name(self) -> str: ...

    def place(self, job: Job, shortlist: Shortlist, now: float) -> Placement | Wait: ...
