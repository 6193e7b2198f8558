"""The simulation of one candidate: how much of the workload it serves within the levels, block by block."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from slipstream.cluster.tools.plan.candidate import DeploymentCandidate
from slipstream.cluster.tools.sim.sim_config import SimConfig
from slipstream.cluster.tools.sim.sim_run import SimRun
from slipstream.cluster.tools.workload.workload import open_workload
from slipstream.router.config.router_config import SloConfig

NUM_BLOCKS = 10  # per run; blocks are nearly independent, so they count as samples
NUM_RESAMPLES = 2000
INTERVAL = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class PlanGoal:
    """What is to be served. `workload` is a trace or a mix, as for `slipstream sim`."""

    workload: str
    slo: SloConfig
    num_requests: int
    speed: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CandidateTrial:
    """The requests per second that kept both levels, and those that came, in each of NUM_BLOCKS blocks of time."""

    candidate: DeploymentCandidate
    good_rps: tuple[float, ...]
    offered_rps: float
    attainment: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    num_failed: int
    remote_share: float
    num_too_long: int = 0
    good_tokens_per_s: float = 0.0  # output tokens of the requests that kept both levels

    @property
    def cost_per_million(self) -> float | None:
        """Of a million output tokens of requests that kept both levels; None without a price or without such
        tokens."""
        price = self.candidate.price_per_hour
        return None if price is None or not self.good_tokens_per_s else price / 3600.0 / self.good_tokens_per_s * 1e6

    @property
    def goodput_rps(self) -> float:
        return fmean(self.good_rps)


def simulate(question: PlanGoal, candidate: DeploymentCandidate, seed: int = 0, speed: float = 1.0) -> CandidateTrial:
    """Simulates a candidate. The same question, candidate and seed give the same trial. Raises TraceError or ValueError
    if the workload is not valid."""
    workload = open_workload(question.workload, question.num_requests, question.speed * speed, question.seed + seed)
    config = SimConfig(
        workload=question.workload,
        requests=question.num_requests,
        speed=question.speed * speed,
        slo=question.slo,
        seed=question.seed + seed,
        max_queued_requests=1_000_000,
    )
    result = SimRun(config, candidate.profile(), workload, workload.last_s).run(candidate.policy, candidate.split)
    outcomes = result.outcomes
    span_s = max(outcomes.span_s, 1e-3)
    good = [0] * NUM_BLOCKS
    first_s = min(outcomes.arrived_s)
    for arrived_s, is_good in zip(outcomes.arrived_s, outcomes.is_good, strict=True):
        good[min(int((arrived_s - first_s) / span_s * NUM_BLOCKS), NUM_BLOCKS - 1)] += is_good
    ttft, itl = outcomes.percentiles_ms(outcomes.ttft_s), outcomes.percentiles_ms(outcomes.itl_s)
    return CandidateTrial(
        candidate=candidate,
        good_rps=tuple(count / (span_s / NUM_BLOCKS) for count in good),
        offered_rps=len(outcomes) / span_s,
        attainment=result.attainment,
        ttft_p50_ms=ttft[50],
        ttft_p99_ms=ttft[99],
        itl_p50_ms=itl[50],
        itl_p99_ms=itl[99],
        num_failed=result.num_failed,
        remote_share=result.remote_share,
        num_too_long=result.num_too_long,
        good_tokens_per_s=outcomes.num_good_tokens / span_s,
    )


@dataclass(frozen=True, slots=True)
class GoodputEstimate:
    """A mean with the ends of its 95% interval."""

    mean: float
    low: float
    high: float


def estimate(values: Sequence[float]) -> GoodputEstimate:
    """The mean with its interval, by bootstrap over blocks, which assumes no particular distribution."""
    rng = random.Random(0)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES))
    low, high = (means[min(int(share * NUM_RESAMPLES), NUM_RESAMPLES - 1)] for share in INTERVAL)
    return GoodputEstimate(fmean(values), low, high)


def difference(one: Sequence[CandidateTrial], other: Sequence[CandidateTrial]) -> GoodputEstimate:
    """The difference in goodput, `one` minus `other`. It is taken block by block for the same seeds, where both saw the
    same requests."""
    pairs = [
        a - b
        for mine, theirs in zip(one, other, strict=True)
        for a, b in zip(mine.good_rps, theirs.good_rps, strict=True)
    ]
    return estimate(pairs)


def goodput(trials: Sequence[CandidateTrial]) -> GoodputEstimate:
    return estimate([value for trial in trials for value in trial.good_rps])
