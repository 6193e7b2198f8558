"""Forests of XGBoost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import xgboost

from slipstream.workers.backends.trees.forest import ROWS_FOR_THREADS, Array

CLASS_ONLY = "multi:softmax"  # which says the class, and not how probable each is
PROBABILITIES = "multi:softprob"


class XgboostForest:
    """Forest. All trees are asked, also those behind the best iteration of an early stop."""

    def __init__(self, path: Path, num_threads: int) -> None:
        self._booster = xgboost.Booster()
        self._booster.load_model(bytearray(path.read_bytes()))
        self._booster.set_param({"nthread": 1})
        self._num_threads = num_threads
        self._threads_now = 1
        learner = json.loads(self._booster.save_config())["learner"]
        objective = learner["objective"]["name"]
        if objective == CLASS_ONLY:
            self._booster.set_param({"objective": PROBABILITIES})
        self.num_features = self._booster.num_features()
        self.num_classes = 2 if objective.startswith("binary:") else int(learner["learner_model_param"]["num_class"])

    def scores(self, rows: Array) -> Array:
        threads = self._num_threads if len(rows) >= ROWS_FOR_THREADS else 1
        if threads != self._threads_now:
            self._booster.set_param({"nthread": threads})
            self._threads_now = threads
        return np.asarray(self._booster.inplace_predict(rows, validate_features=False))
