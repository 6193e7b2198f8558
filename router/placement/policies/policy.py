"""What a placement policy is: a function of a request and a bounded number of workers.

The dispatcher calls it for each waiting request and reports nothing back; all it knows of a worker is in its
`WorkerState` (credits, load, service times) and all it knows of the request in the `PlacementJob`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slipstream.router.placement.policies.shortlist import Shortlist
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.output_length import OutputForecast
from slipstream.router.requests.placement_decision import Placement, PlacementReason, Wait


@dataclass(slots=True)
class PlacementJob:
    """A request to be placed. `waited_s` counts from its arrival, and is 0 for one that has its first token and
    continues elsewhere. `remaining_tokens` is the output still expected.

    `local_max_tokens` is a limit that the operator or the client has set: a prompt of up to so many tokens is
    prefilled locally, a longer one by a prefill group. None: there is no limit. `may_wait`: the request may be held
    back for a better worker although another has room; `num_waiting_before` requests are held back already.
    `most_tokens` are those that prompt and output may have in the end.
    `placed_on` is the worker whose load includes this request already. `wants_output`: something follows the prompt.
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
    most_tokens: int = 0
    placed_on: WorkerState | None = None
    wants_output: bool = True

    def forced_reason(self, shortlist: Shortlist) -> PlacementReason | None:
        """Why prefill has to be local, or has to be remote; None if the policy may choose.

        The limit counts all tokens of the prompt here, because what the router believes to be cached may only be
        expected. It is applied again once a decode worker has reserved pages and reported what it has cached."""
        if not self.wants_output:
            return "prompt_only"
        if self.local_max_tokens is not None and self.num_tokens <= self.local_max_tokens:
            return "short_prompt"
        if not shortlist.prefills:
            return shortlist.no_prefill or "no_prefill_group"
        return "long_prompt" if self.local_max_tokens is not None else None

    def limit_reason(self, reason: PlacementReason) -> str:
        """What the line that explains a decision says of the limit, if that was the reason."""
        if self.local_max_tokens is None or reason not in ("short_prompt", "long_prompt"):
            return ""
        which = f"prompts of up to {self.local_max_tokens} tokens stay" if self.local_max_tokens else "no prompt stays"
        return f"; {which} local (local_prefill_max_tokens)"


class PlacementPolicy(Protocol):
    """`place` sees only the workers of the shortlist, at least one of which is a decode worker."""

    @property
    def name(self) -> str: ...

    def place(self, job: PlacementJob, shortlist: Shortlist, now: float) -> Placement | Wait: ...
