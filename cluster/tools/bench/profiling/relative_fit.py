"""Fits times as a linear function of some features, for a few measurements that range from very short to very long."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np


def relative_fit(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[float, ...]:
    """A coefficient for each feature, none of them below 0, with the least squares of relative errors. There must be at
    least one measurement."""
    times = np.array(seconds)
    relative = np.array(features) / times[:, None]
    num_features = relative.shape[1]
    best_error = float("inf")
    best: tuple[float, ...] = (0.0,) * num_features
    for count in range(1, min(num_features, len(times)) + 1):
        for kept in itertools.combinations(range(num_features), count):
            found = np.linalg.lstsq(relative[:, kept], np.ones(len(times)), rcond=None)[0]
            error = float(np.square(relative[:, kept] @ found - 1.0).sum())
            if (found >= 0).all() and error < best_error - 1e-9:
                coefficients = {at: float(value) for at, value in zip(kept, found, strict=True)}
                best_error, best = error, tuple(coefficients.get(at, 0.0) for at in range(num_features))
    return best
