"""Finds the best way to serve: the most goodput for a given number of devices, or else the fewest devices that suffice.

1  all splits, with one seed                         -> the best colocated and the best disaggregated one
2  each of them with other chunks, policies and neighbouring splits, with the same seed, as long as that helps
3  the winners of both kinds, with several seeds     -> means, intervals, the difference
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from slipstream.cluster.tools.plan.candidate import DeploymentCandidate, devices, splits, variations
from slipstream.cluster.tools.plan.trial import CandidateTrial, GoodputEstimate, difference, goodput
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.router.config.router_config import PolicyName

Simulate = Callable[[DeploymentCandidate, int], CandidateTrial]  # from a candidate and a seed
NUM_ROUNDS = 3  # of variations
LEAST_COUNTS = 1e-6  # of candidates by cost that do not keep the target: any that does is better
CLOSE = 0.98  # of the best goodput; for less than the rest, it is not worth changing policy or chunk


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A candidate with the trials of all its seeds."""

    candidate: DeploymentCandidate
    trials: Sequence[CandidateTrial]

    @property
    def goodput(self) -> GoodputEstimate:
        return goodput(self.trials)

    @property
    def attainment(self) -> float:
        return fmean(trial.attainment for trial in self.trials)

    @property
    def cost_per_million(self) -> float | None:
        """Of output tokens within the levels, where prices are known."""
        costs = [trial.cost_per_million for trial in self.trials]
        known = [cost for cost in costs if cost is not None]
        return fmean(known) if known and len(known) == len(costs) else None


@dataclass(slots=True)
class SearchResult:
    """The result of a search. `tried` are the trials with the first seed. `apart`, the best disaggregated finalist, is
    None if there is only one device. `gain_rps` is its goodput minus that of `colocated`. `is_enough`: the target is
    met."""

    num_devices: int
    colocated: RankedCandidate
    apart: RankedCandidate | None
    gain_rps: GoodputEstimate | None
    is_enough: bool
    tried: list[CandidateTrial] = field(default_factory=list)
    target: float = 0.0
    by_cost: bool = False

    @property
    def best(self) -> RankedCandidate:
        """The recommended finalist. Colocated serving is simpler, so the other one has to be better with certainty. By
        cost it is the cheaper one of those that keep the target, if some do."""
        if self.by_cost and self.apart is not None and self.apart.cost_per_million is not None:
            enough = [one for one in (self.colocated, self.apart) if one.attainment >= self.target]
            return min(enough or (self.colocated, self.apart), key=lambda one: one.cost_per_million or math.inf)
        if self.apart is not None and self.gain_rps is not None and self.gain_rps.low > 0:
            return self.apart
        return self.colocated


class Search:
    """The search. `simulate` is called once for each candidate and seed."""

    def __init__(
        self,
        simulate: Simulate,
        profiles: Sequence[WorkerProfile],
        policies: Sequence[PolicyName],
        num_seeds: int,
        by_cost: float | None = None,
    ) -> None:
        """`by_cost`: of the candidates that keep the levels for this share of all requests, the one that costs least
        for its tokens is the best; None: the one with the most goodput."""
        self._by_cost = by_cost
        self._simulate = simulate
        self._profiles = profiles
        self._policies = policies
        self._num_seeds = num_seeds
        self._trials: dict[tuple[DeploymentCandidate, int], CandidateTrial] = {}

    @property
    def min_devices(self) -> int:
        return min(map(devices, self._profiles))

    def at(self, num_devices: int, target: float) -> SearchResult:
        """The best candidates for so many devices."""
        candidates = list(splits(self._profiles, num_devices))
        together = self._climbed([one for one in candidates if one.is_colocated])
        apart = self._climbed([one for one in candidates if not one.is_colocated])
        colocated = self._final(together)
        disaggregated = self._final(apart) if apart is not None else None
        assert colocated is not None
        gain = difference(disaggregated.trials, colocated.trials) if disaggregated is not None else None
        found = SearchResult(num_devices, colocated, disaggregated, gain, False)
        found.target, found.by_cost = target, self._by_cost is not None
        found.is_enough = found.best.attainment >= target
        found.tried = [
            trial for (one, seed), trial in self._trials.items() if seed == 0 and one.num_devices <= num_devices
        ]
        return found

    def fewest(self, target: float, most: int) -> SearchResult:
        """The result for the smallest number of devices whose best candidate keeps the levels for a share `target` of
        all requests, or for `most` devices if not even those do. More devices are assumed to be no worse."""
        low, high = self.min_devices - 1, self.min_devices
        while high < most and not self._suffices(high, target):
            low, high = high, min(2 * high, most)
        while high - low > 1:
            middle = (low + high) // 2
            if self._suffices(middle, target):
                high = middle
            else:
                low = middle
        found = self.at(high, target)
        while not found.is_enough and high < most:  # the first seed has promised too much
            high += 1
            found = self.at(high, target)
        return found

    def _suffices(self, num_devices: int, target: float) -> bool:
        return any(self._trial(one).attainment >= target for one in splits(self._profiles, num_devices))

    def _climbed(self, candidates: Sequence[DeploymentCandidate]) -> DeploymentCandidate | None:
        """Hill climbing: from the best of the candidates to better ones that differ in one thing, until there are
        none."""
        if not candidates:
            return None
        best = max(candidates, key=self._score)
        for _ in range(NUM_ROUNDS):
            better = max(variations(best, self._policies), key=self._score, default=best)
            if self._score(best) >= CLOSE * self._score(better):
                return best
            best = better
        return best

    def _score(self, candidate: DeploymentCandidate) -> float:
        trial = self._trial(candidate)
        if self._by_cost is None or trial.cost_per_million is None:
            return trial.goodput_rps
        return (1.0 if trial.attainment >= self._by_cost else LEAST_COUNTS * trial.attainment) / trial.cost_per_million

    def _trial(self, candidate: DeploymentCandidate, seed: int = 0) -> CandidateTrial:
        key = (candidate, seed)
        if key not in self._trials:
            self._trials[key] = self._simulate(candidate, seed)
        return self._trials[key]

    def _final(self, candidate: DeploymentCandidate | None) -> RankedCandidate | None:
        if candidate is None:
            return None
        return RankedCandidate(candidate, [self._trial(candidate, seed) for seed in range(self._num_seeds)])
