"""Forests of LightGBM."""

from __future__ import annotations

from pathlib import Path

import lightgbm
import numpy as np

from slipstream.workers.backends.trees.forest import ROWS_FOR_THREADS, Array

MULTICLASS = ("multiclass", "multiclassova")


class LightgbmForest:
    """Forest. All trees are asked."""

    def __init__(self, path: Path, num_threads: int) -> None:
        self._booster = lightgbm.Booster(model_file=str(path))
        self._num_threads = num_threads
        objective = str(self._booster.dump_model(num_iteration=1).get("objective", "")).split(" ")[0]
        self.num_features = self._booster.num_feature()
        self.num_classes = 0
        if objective == "binary":
            self.num_classes = 2
        elif objective in MULTICLASS:
            self.num_classes = self._booster.num_model_per_iteration()

    def scores(self, rows: Array) -> Array:
        threads = self._num_threads if len(rows) >= ROWS_FOR_THREADS else 1
        return np.asarray(self._booster.predict(rows, num_iteration=-1, num_threads=threads))
