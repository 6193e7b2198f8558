"""Estimators of scikit-learn, from a pickle or a file of joblib. Reading one runs the code that is in it."""

from __future__ import annotations

from pathlib import Path

import joblib
import numpy as np

from slipstream.workers.backends.trees.forest import Array


class SklearnForest:
    """Forest. Any estimator that predicts; a classifier says the probability of its classes."""

    def __init__(self, path: Path, num_jobs: int) -> None:
        self._estimator = joblib.load(path)
        if not hasattr(self._estimator, "predict"):
            raise TypeError(f"a {type(self._estimator).__name__} does not predict")
        if hasattr(self._estimator, "n_jobs"):
            self._estimator.n_jobs = num_jobs
        self.num_features = int(self._estimator.n_features_in_)
        self._is_classifier = hasattr(self._estimator, "predict_proba")
        self.num_classes = len(self._estimator.classes_) if self._is_classifier else 0

    def scores(self, rows: Array) -> Array:
        if self._is_classifier:
            return np.asarray(self._estimator.predict_proba(rows))
        return np.asarray(self._estimator.predict(rows))
