"""What the libraries of trees have in common."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class Forest(Protocol):
    """`num_classes` 0: it is no classifier."""

    num_features: int
    num_classes: int

    def scores(self, rows: Array) -> Array:
        """Of rows [rows, features]: the probability of each class [rows, classes] (of two classes, perhaps only that of
        the second one, [rows] or [rows, 1]), else what the trees say, [rows] or [rows, targets]."""


ROWS_FOR_THREADS = 512  # fewer are computed by one thread before others would have begun


def as_table(scores: Array) -> Array:
    return scores.reshape(-1, 1) if scores.ndim == 1 else scores
