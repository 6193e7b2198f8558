"""How long a conversation pauses for a tool, and whether it comes back at all, learned from the pauses before.

Pauses are counted in logarithmic bins, by class, from fine to coarse:

    (tool, tenant)  ->  (tool)  ->  all tools  ->  prior

A class with few pauses borrows from the next coarser one, as the lengths of outputs do (`requests.output_length`). Old
pauses fade. That a conversation is gone counts like a pause without end. The tools of agents take from milliseconds to
minutes, and each its own time: InferCept (Abhyankar et al., ICML 2024, table 1) and Continuum (Li et al., 2025), which
keeps KV for a time to live as well.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BINS_A_DOUBLING = 2
SHORTEST_LOG2_S = -5.0  # 31 ms; shorter pauses are in the first bin
NUM_BINS = 18 * BINS_A_DOUBLING  # up to 2.3 h
GONE = NUM_BINS  # the bin of those that did not come back
EDGES_S = tuple(2.0 ** (SHORTEST_LOG2_S + (at + 1) / BINS_A_DOUBLING) for at in range(NUM_BINS))  # upper ends
BORROWED = 4.0
FADE = 0.995  # of all counts of a class with each pause: about the last 200 count
MAX_CLASSES = 4096  # tools are named by clients
# Of calls: a median of 4 s, nine in ten within 2 min; nine in ten come back. Any start does.
PRIOR_LOG2_MEAN, PRIOR_LOG2_SIGMA, PRIOR_GONE = 2.0, 3.0, 0.1
KEPT_QUANTILE = 0.95  # of the pauses of those that come back
ANSWER = ""  # the name under which answers without a call are learned: the user comes back, or does not

_Key = tuple[str, ...]


class PauseForecast(NamedTuple):
    """`keep_s` is the time within which nearly all come that come back, `return_share` how many of all do so within it,
    and `mean_s` what pages are kept for on average if they are kept until then, or until the return."""

    keep_s: float
    return_share: float
    mean_s: float


@dataclass(slots=True)
class _Pauses:
    """Counts of one class, the last of them those that are gone."""

    counts: list[float] = field(default_factory=lambda: [0.0] * (NUM_BINS + 1))
    total: float = 0.0
    weight: float = 1.0  # of the next pause: the old ones fade by the new ones' growing

    def add(self, at: int) -> None:
        if self.weight > 1e6:
            self.counts = [count / self.weight for count in self.counts]
            self.total /= self.weight
            self.weight = 1.0
        self.weight /= FADE
        self.counts[at] += self.weight
        self.total += self.weight

    def mix(self, coarser: Sequence[float]) -> list[float]:
        """The shares of the class, with what it borrows."""
        borrowed = BORROWED * self.weight
        whole = self.total + borrowed
        return [(count + borrowed * share) / whole for count, share in zip(self.counts, coarser, strict=True)]


def _prior() -> list[float]:
    middles = (SHORTEST_LOG2_S + (at + 0.5) / BINS_A_DOUBLING for at in range(NUM_BINS))
    weights = [math.exp(-0.5 * ((middle - PRIOR_LOG2_MEAN) / PRIOR_LOG2_SIGMA) ** 2) for middle in middles]
    total = sum(weights)
    return [(1.0 - PRIOR_GONE) * weight / total for weight in weights] + [PRIOR_GONE]


PRIOR = _prior()


class PauseEstimates:
    """Of one model. Sans-IO; memory is bounded by `MAX_CLASSES` classes of `NUM_BINS` numbers."""

    def __init__(self) -> None:
        self._classes: OrderedDict[_Key, _Pauses] = OrderedDict()

    def __len__(self) -> int:
        return len(self._classes)

    def learn(self, tenant: str, tool: str, pause_s: float | None) -> None:
        """A conversation has come back after so long; None: it has not."""
        at = GONE if pause_s is None else bin_of(pause_s)
        for key in _from_fine_to_coarse(tenant, tool):
            pauses = self._classes.get(key)
            if pauses is None:
                if len(self._classes) >= MAX_CLASSES:
                    self._classes.popitem(last=False)
                pauses = self._classes[key] = _Pauses()
            else:
                self._classes.move_to_end(key)
            pauses.add(at)

    def forecast(self, tenant: str, tool: str, most_s: float) -> PauseForecast:
        """For a conversation that begins to wait, whose pages are kept for at most `most_s`."""
        shares: Sequence[float] = PRIOR
        for key in reversed(_from_fine_to_coarse(tenant, tool)):
            pauses = self._classes.get(key)
            if pauses is not None:
                shares = pauses.mix(shares)
        wanted = KEPT_QUANTILE * (1.0 - shares[GONE])
        returned = waited_s = below_s = 0.0
        for share, edge_s in zip(shares, EDGES_S, strict=False):
            if below_s >= most_s or returned >= wanted:
                break
            returned += share
            waited_s += share * 0.5 * (below_s + edge_s)
            below_s = edge_s
        keep_s = min(below_s, most_s)
        return PauseForecast(keep_s, returned, waited_s + (1.0 - returned) * keep_s)


def bin_of(pause_s: float) -> int:
    """The number of a pause's bin."""
    if pause_s <= EDGES_S[0]:
        return 0
    return min(math.floor((math.log2(pause_s) - SHORTEST_LOG2_S) * BINS_A_DOUBLING), NUM_BINS - 1)


def _from_fine_to_coarse(tenant: str, tool: str) -> tuple[_Key, ...]:
    """An answer without a call has nothing to do with the times of tools."""
    if tool == ANSWER:
        return ((ANSWER, tenant), (ANSWER,))
    return ((tool, tenant), (tool,), ())
