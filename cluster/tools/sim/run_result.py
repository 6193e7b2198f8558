"""What came of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from slipstream.cluster.planner.planner_decision import PlannerDecision
from slipstream.cluster.tools.sim.client_outcomes import Outcomes
from slipstream.cluster.tools.sim.sim_config import Split
from slipstream.cluster.tools.sim.sim_faults import Fault
from slipstream.router.config.router_config import PolicyName
from slipstream.router.protocol.messages import Role
from slipstream.router.requests.placement_decision import REMOTE_REASONS


@dataclass(frozen=True, slots=True)
class Sample:
    """How things stood. `busy` is the share of their time that the ready workers of a role have computed since the
    sample before."""

    at_s: float
    num_waiting: int
    num_running: int
    num_prefill: int
    num_decode: int
    busy_prefill: float
    busy_decode: float


@dataclass(slots=True)
class RunResult:
    """`cpu_s` and `rss_bytes` are what the simulation itself took; all else is the same for the same seed."""

    policy: PolicyName
    split: Split
    outcomes: Outcomes
    simulated_s: float = 0.0
    num_transfers: int = 0
    transfer_bytes: float = 0.0
    most_transfers: int = 0
    num_preemptions: int = 0
    num_moves: int = 0  # of sequences that decoded to another worker
    pause_s: float = 0.0  # that each of them stood still, on average
    placements: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    cached_share: float = 0.0
    worker_s: dict[Role, float] = field(default_factory=dict)  # ready, summed over workers
    busy_s: dict[Role, float] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    decisions: list[PlannerDecision] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    num_events: int = 0
    cpu_s: float = 0.0
    rss_bytes: int = 0
    model: str = ""  # of several
    price_per_hour: float | None = None  # of a worker
    paid_s: float = 0.0  # for which there were workers, in whichever state, summed up

    @property
    def name(self) -> str:
        return f"{self.split.name} {self.policy}"

    @property
    def cost(self) -> float | None:
        """Of all workers, for as long as the run lasted."""
        return None if self.price_per_hour is None else self.price_per_hour * self.paid_s / 3600.0

    @property
    def cost_per_million(self) -> float | None:
        """Of a million output tokens of requests that kept both levels; None without a price or without such tokens."""
        tokens, cost = self.outcomes.num_good_tokens, self.cost
        return None if cost is None or not tokens else cost / tokens * 1e6

    @property
    def attainment(self) -> float:
        """Share of all requests that ended well and kept both levels."""
        return self.outcomes.num_good / max(len(self.outcomes), 1)

    @property
    def goodput_rps(self) -> float:
        return self.outcomes.num_good / max(self.outcomes.span_s, 1e-9)

    @property
    def num_failed(self) -> int:
        return sum(count for end, count in self.outcomes.ends.items() if end not in ("stop", "length"))

    @property
    def num_too_long(self) -> int:
        """Requests with a longer prompt than the model takes."""
        return self.outcomes.ends["prompt_too_long"]

    @property
    def remote_share(self) -> float:
        remote = sum(self.placements[reason] for reason in REMOTE_REASONS)
        return remote / max(sum(self.placements.values()), 1)

    def utilisation(self, role: Role) -> float:
        return self.busy_s.get(role, 0.0) / max(self.worker_s.get(role, 0.0), 1e-9)
