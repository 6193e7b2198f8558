"""A straight line through measured times, fitted as they come: `seconds = sum(coefficient * feature)`.

A Kalman filter over the coefficients, which drift slowly. Chosen over a window of samples because its state is a few
numbers, its answer comes with an uncertainty, and a coefficient that no sample tells apart from the others stays where
it was instead of wandering off. What is special here:

- Times differ by orders of magnitude, so the noise of a sample is relative to it.
- One sample moves a settled fit by at most `MAX_SIGMAS` of what it held possible. Each sample that is cut widens
  what it holds possible, so the fit follows a machine that has really become slower after a few more.
- Coefficients are never negative: more work does not take less time. One that noise has brought to nothing finds its
  way back, as its uncertainty is never small beside the samples' times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

MAX_SECONDS = 600.0  # nothing measured here takes longer; what claims to is broken
NUM_FREE_SAMPLES = 3  # the first samples count as far as they are within CREDIBLE of the prior
CREDIBLE = 1e3
MAX_SIGMAS = 3.0
WIDEN = 1.6  # of the uncertainty (its square: 2.5) after a sample that was cut
MAX_SPREAD = 3.0  # the uncertainty of a coefficient is at most so many times its size
DRIFT = 0.01  # relative change of a coefficient from sample to sample
# Of a sample's time: what a coefficient is taken to be able to make up, however small it is just now. It is less where
# the sample has little of its feature: many short prompts say nothing about pairs, and would let that go anywhere.
REACH = 0.3
FIRST_NOISE = 0.3  # relative, until the samples have shown how noisy they are
NOISE_RATE = 0.05
MIN_NOISE = 0.02


@dataclass(frozen=True, slots=True)
class LinearEstimate:
    """Seconds, and one standard deviation of them."""

    seconds: float
    sigma_s: float


def dot(weights: Sequence[float], values: Sequence[float]) -> float:
    """The sum of products. Every request brings half a dozen measurements, and generators would cost more than sums."""
    total: float = sum(map(mul, weights, values))
    return total


class LinearFit:
    """`prior` are coefficients to begin with, in seconds a unit of their feature; none may be 0, as their sizes say how
    far the truth may be away."""

    __slots__ = ("_covariance", "_densest", "_noise", "_prior", "coefficients", "num_samples")

    def __init__(self, prior: Sequence[float]) -> None:
        if not prior or any(not 0 < value < math.inf for value in prior):
            raise ValueError(f"a prior is made of numbers over 0, got {tuple(prior)}")
        self._prior = tuple(prior)
        self.coefficients = tuple(prior)
        self._covariance = [
            [(MAX_SPREAD * value) ** 2 if row == column else 0.0 for column in range(len(prior))]
            for row, value in enumerate(prior)
        ]
        self._densest = [0.0] * len(prior)  # the most of each feature that a second of the prior's has brought
        self._noise = FIRST_NOISE
        self.num_samples = 0

    @property
    def noise(self) -> float:
        """Relative: how far samples lie from the line."""
        return self._noise

    def seconds(self, features: Sequence[float]) -> float:
        return dot(self.coefficients, features)

    def predict(self, features: Sequence[float]) -> LinearEstimate:
        """With the uncertainty of the line and of a single measurement."""
        seconds = self.seconds(features)
        spread = self._spread(features)[1]
        return LinearEstimate(seconds, math.sqrt(max(spread, 0.0) + (self._noise * seconds) ** 2))

    def observe(self, features: Sequence[float], seconds: float) -> bool:
        """Takes a measurement. False: it cannot be one, and nothing changed."""
        if not 0.0 <= seconds <= MAX_SECONDS:  # also not a number
            return False
        if len(features) != len(self._prior):
            raise ValueError(f"{len(features)} features for {len(self._prior)} coefficients")
        if not (0.0 < sum(features) < math.inf and min(features) >= 0.0):
            return False
        expected, usual = self.seconds(features), dot(self._prior, features)
        if self.num_samples < NUM_FREE_SAMPLES:
            seconds = min(max(seconds, usual / CREDIBLE), usual * CREDIBLE)
        along, spread = self._spread(features)
        scale = max(expected, min(seconds, 2 * expected))
        if self.num_samples < NUM_FREE_SAMPLES:
            scale = seconds
            needed = (seconds - expected) ** 2
            if needed > spread:  # the prior was further off than it thought
                factor = needed / spread
                self._covariance = [[value * factor for value in row] for row in self._covariance]
                along, spread = [value * factor for value in along], spread * factor
        variance = spread + (self._noise * scale) ** 2
        if variance <= 0.0:
            return False
        surprise = seconds - expected
        limit = MAX_SIGMAS * math.sqrt(variance)
        is_cut = self.num_samples >= NUM_FREE_SAMPLES and abs(surprise) > limit
        if is_cut:
            surprise = math.copysign(limit, surprise)
        gain = [value / variance for value in along]
        self.coefficients = tuple(max(w + g * surprise, 0.0) for w, g in zip(self.coefficients, gain, strict=True))
        self._densest = [max(most, value / usual) for most, value in zip(self._densest, features, strict=True)]
        reach = [REACH * scale / usual / most if most > 0.0 else 0.0 for most in self._densest]
        self._shrink(gain, along, WIDEN**2 if is_cut else 1.0, reach)
        error = min(abs(surprise) / max(scale, 1e-9), 1.0)
        self._noise = max(MIN_NOISE, self._noise + NOISE_RATE * (1.25 * error - self._noise))  # 1.25: mean -> sigma
        self.num_samples += 1
        return True

    def _spread(self, features: Sequence[float]) -> tuple[list[float], float]:
        """The covariance along the features, and the variance of their sum."""
        along = [dot(row, features) for row in self._covariance]
        return along, dot(along, features)

    def _shrink(self, gain: Sequence[float], along: Sequence[float], widen: float, reach: Sequence[float]) -> None:
        """What the sample taught makes the covariance smaller, drift makes it larger, up to a bound."""
        covariance = self._covariance
        for row, g in enumerate(gain):
            line = covariance[row]
            for column in range(row + 1):  # both halves from one: what rounding makes of their difference would grow
                line[column] = covariance[column][row] = (line[column] - g * along[column]) * widen
        for at, (w, first) in enumerate(zip(self.coefficients, self._prior, strict=True)):
            size = max(w, 1e-3 * first, reach[at])
            most = (MAX_SPREAD * size) ** 2
            grown = max(covariance[at][at], 0.0) + (DRIFT * size) ** 2
            if grown > most:  # a row and a column scaled alike keep the matrix a covariance
                factor = math.sqrt(most / grown)
                for other in range(len(gain)):
                    covariance[at][other] *= factor
                    covariance[other][at] *= factor
                grown = most
            covariance[at][at] = grown

    def to_dict(self) -> dict[str, Any]:
        """In plain values, for profiles."""
        return {
            "prior": list(self._prior),
            "coefficients": list(self.coefficients),
            "covariance": [list(row) for row in self._covariance],
            "densest": list(self._densest),
            "noise": self._noise,
            "num_samples": self.num_samples,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LinearFit:
        """The inverse of `to_dict`. Raises ValueError or KeyError for what it cannot have made."""
        fit = cls([float(value) for value in values["prior"]])
        size = len(fit._prior)
        coefficients = tuple(float(value) for value in values["coefficients"])
        covariance = [[float(value) for value in row] for row in values["covariance"]]
        densest = [float(value) for value in values["densest"]]
        if {len(coefficients), len(densest), len(covariance), *map(len, covariance)} != {size}:
            raise ValueError(f"a fit of {size} coefficients has others, or a covariance of another size")
        fit.coefficients, fit._covariance, fit._densest = coefficients, covariance, densest
        fit._noise, fit.num_samples = float(values["noise"]), int(values["num_samples"])
        return fit
