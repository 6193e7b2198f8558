"""How long an answer will be, learned from the answers before.

Lengths are counted in logarithmic bins, by class of request, from fine to coarse:

    (tenant, prompt length)  ->  (tenant)  ->  all tenants  ->  prior

A class with few answers borrows from the next coarser one: that counts as `BORROWED` answers, spread as the coarser
class spreads them, so a new tenant begins with the mean of all tenants and soon has figures of its own. Old answers
fade. An answer that was cut off (max_tokens, or the client left) tells only that it would have been longer: its weight
goes to the longer bins as the class has them so far.

A client's guess is a hint and not the truth: what is learned for a tenant that gives hints is the ratio of answer to
hint.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

BINS_A_DOUBLING = 4
NUM_BINS = 17 * BINS_A_DOUBLING  # up to 2**17 tokens
EDGES = tuple(2.0 ** ((at + 1) / BINS_A_DOUBLING) for at in range(NUM_BINS))  # upper ends
RATIO_AT_ONE = NUM_BINS // 2  # the bin of ratio 1
BORROWED = 6.0
FADE = 0.998  # of all counts of a class with each answer: about the last 500 count
MAX_CLASSES = 4096  # tenants are named by clients
QUANTILES = (0.1, 0.5, 0.9)
PROMPT_EDGES = (128, 512, 2048, 8192, 32768)  # tokens: classes of prompts
# Answers of chats: a median of about 200 tokens, nine in ten between 30 and 1,000.
PRIOR_LOG2_MEAN, PRIOR_LOG2_SIGMA = 7.6, 1.6
PRIOR_RATIO_SIGMA = 0.8  # a client's guess, in doublings


class OutputForecast(NamedTuple):
    """Tokens of the whole answer: the quantiles `QUANTILES`, none over max_tokens, and the mean."""

    low: int
    median: int
    high: int
    mean: float

    def remaining(self, num_tokens: int) -> float:
        """Tokens that are left after `num_tokens`. An answer that has outlived its forecast may end at any time: it is
        given a tenth of what it has."""
        return max(self.mean - num_tokens, 0.1 * num_tokens, 1.0)


def prescribed(num_tokens: int) -> OutputForecast:
    """The forecast of an answer that continues to its max_tokens (`ignore_eos`)."""
    return OutputForecast(num_tokens, num_tokens, num_tokens, float(num_tokens))


UNFORESEEN = OutputForecast(256, 256, 256, 256.0)  # of a request without a forecast


@dataclass(slots=True)
class _Lengths:
    """Counts of one class, and the mix with its coarser class as it was last asked for."""

    counts: list[float] = field(default_factory=lambda: [0.0] * NUM_BINS)
    total: float = 0.0
    weight: float = 1.0  # of the next answer: the old ones fade by the new ones' growing
    num_seen: int = 0
    mixed: list[float] | None = None
    mixed_at: int = -1

    def add(self, shares: list[tuple[int, float]]) -> None:
        if self.weight > 1e6:
            self.counts = [count / self.weight for count in self.counts]
            self.total /= self.weight
            self.weight = 1.0
        self.weight /= FADE
        for at, share in shares:
            self.counts[at] += share * self.weight
        self.total += self.weight
        self.num_seen += 1

    def mix(self, coarser: list[float]) -> list[float]:
        """The class's distribution with what it borrows. Made anew when a sixteenth more is known."""
        if self.mixed is None or self.num_seen - self.mixed_at > self.mixed_at >> 4:
            borrowed = BORROWED * self.weight
            whole = self.total + borrowed
            self.mixed = [(n + borrowed * share) / whole for n, share in zip(self.counts, coarser, strict=True)]
            self.mixed_at = self.num_seen
        return self.mixed


def _normal_bins(mean: float, sigma: float, offset: float = 0.0) -> list[float]:
    """Shares of a normal distribution over log2 of the bins' values."""
    weights = [math.exp(-0.5 * (((at + 0.5 - offset) / BINS_A_DOUBLING - mean) / sigma) ** 2) for at in range(NUM_BINS)]
    total = sum(weights)
    return [weight / total for weight in weights]


_PRIOR = _normal_bins(PRIOR_LOG2_MEAN, PRIOR_LOG2_SIGMA)
_RATIO_PRIOR = _normal_bins(0.0, PRIOR_RATIO_SIGMA, RATIO_AT_ONE + 0.5)

_Key = tuple[str, ...]


@dataclass(slots=True)
class Calibration:
    """How good forecasts were: the share of answers that stayed within each quantile should be the quantile. `loss` is
    the pinball loss in tokens, summed."""

    num_scored: int = 0
    num_within: dict[float, int] = field(default_factory=lambda: dict.fromkeys(QUANTILES, 0))
    loss: dict[float, float] = field(default_factory=lambda: dict.fromkeys(QUANTILES, 0.0))

    def score(self, forecast: OutputForecast, num_tokens: int) -> None:
        self.num_scored += 1
        for quantile, value in zip(QUANTILES, (forecast.low, forecast.median, forecast.high), strict=True):
            error = num_tokens - value
            self.num_within[quantile] += error <= 0
            self.loss[quantile] += quantile * error if error > 0 else (quantile - 1) * error


class OutputLengths:
    """Forecasts and learning. Sans-IO; memory is bounded by `MAX_CLASSES` classes of `NUM_BINS` numbers."""

    def __init__(self) -> None:
        self._classes: OrderedDict[_Key, _Lengths] = OrderedDict()
        self._forecasts: dict[tuple[_Key, int, float], tuple[list[float], OutputForecast]] = {}
        self.calibration = Calibration()

    def predict(self, tenant: str, num_prompt_tokens: int, max_tokens: int, hint: int | None = None) -> OutputForecast:
        """For a request that has produced nothing yet."""
        if hint is not None and hint > 0:
            key: _Key = ("ratio", tenant)
            scale = hint * 2.0 ** (-RATIO_AT_ONE / BINS_A_DOUBLING)
        else:
            key, scale = _finest(tenant, num_prompt_tokens), 1.0
        shares = self._shares(key)
        known = self._forecasts.get((key, max_tokens, scale))
        if known is not None and known[0] is shares:
            return known[1]
        forecast = _forecast(shares, scale, max_tokens)
        if len(self._forecasts) >= MAX_CLASSES:
            self._forecasts.clear()
        self._forecasts[key, max_tokens, scale] = shares, forecast
        return forecast

    def learn(
        self,
        tenant: str,
        num_prompt_tokens: int,
        num_output_tokens: int,
        *,
        is_whole: bool,
        hint: int | None = None,
    ) -> None:
        """An answer has ended. If it is not `is_whole`, it would have been longer than that."""
        length = max(num_output_tokens, 1)
        if hint is not None and hint > 0:
            at = RATIO_AT_ONE + math.floor(BINS_A_DOUBLING * math.log2(length / hint) + 0.5)
            self._add(("ratio", tenant), min(max(at, 0), NUM_BINS - 1), is_whole)
        at = min(bisect_left(EDGES, length), NUM_BINS - 1)
        self._add(_finest(tenant, num_prompt_tokens), at, is_whole)

    def _add(self, key: _Key, at: int, is_whole: bool) -> None:
        shares = [(at, 1.0)] if is_whole else _beyond(self._shares(key), at)
        for one in _from_fine_to_coarse(key):
            lengths = self._classes.get(one)
            if lengths is None:
                if len(self._classes) >= MAX_CLASSES:
                    self._classes.popitem(last=False)
                lengths = self._classes[one] = _Lengths()
            else:
                self._classes.move_to_end(one)
            lengths.add(shares)

    def _shares(self, key: _Key) -> list[float]:
        """The class's distribution over bins."""
        shares = _RATIO_PRIOR if key[0] == "ratio" else _PRIOR
        for one in reversed(_from_fine_to_coarse(key)):
            lengths = self._classes.get(one)
            if lengths is not None:
                shares = lengths.mix(shares)
        return shares


def _finest(tenant: str, num_prompt_tokens: int) -> _Key:
    return ("length", tenant, str(bisect_left(PROMPT_EDGES, num_prompt_tokens)))


def _from_fine_to_coarse(key: _Key) -> list[_Key]:
    return [key[:size] for size in range(len(key), 0, -1)]


def _beyond(shares: list[float], at: int) -> list[tuple[int, float]]:
    """One answer's weight, spread over bin `at` and those after it as `shares` are."""
    whole = sum(shares[at:])
    if whole <= 0.0:
        return [(at, 1.0)]
    return [(later, shares[later] / whole) for later in range(at, NUM_BINS) if shares[later] > 1e-3 * whole]


def _forecast(shares: list[float], scale: float, max_tokens: int) -> OutputForecast:
    """Quantiles by linear interpolation within a bin; the mean with each bin at its middle."""
    found: list[int] = []
    mean = so_far = 0.0
    below = scale
    targets = iter(QUANTILES)
    target: float | None = next(targets)
    for share, edge in zip(shares, EDGES, strict=True):
        above = scale * edge
        while target is not None and share > 0.0 and so_far + share >= target:
            value = below + (above - below) * (target - so_far) / share
            found.append(max(1, min(round(value), max_tokens)))
            target = next(targets, None)
        mean += share * min((below + above) / 2, max_tokens)
        so_far += share
        if below >= max_tokens and target is None:
            mean += (1.0 - so_far) * max_tokens
            break
        below = above
    found += [max_tokens] * (len(QUANTILES) - len(found))
    low, median, high = found
    return OutputForecast(low, median, high, min(max(mean, 1.0), max_tokens))
