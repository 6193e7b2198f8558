"""From the outputs of a model to one score for each row."""

from __future__ import annotations

from typing import Literal

import numpy as np

from slipstream.router.api.tensors.models.tensor_arrays import Array

Activation = Literal["auto", "none", "sigmoid", "softmax"]


def scores_of(outputs: Array, activation: Activation, *, are_logits: bool) -> Array:
    """`outputs` are [rows] or [rows, classes], of which the last class is that of what fits. `auto` makes
    probabilities of logits: by a sigmoid of a single class, by the softmax of several."""
    classes = np.asarray(outputs, np.float64).reshape(len(outputs), -1)
    if activation == "auto":
        several = classes.shape[1] > 1
        activation = ("softmax" if several else "sigmoid") if are_logits else "none"
    if activation == "softmax":
        classes = np.exp(classes - classes.max(axis=1, keepdims=True))
        classes = classes / classes.sum(axis=1, keepdims=True)
    scores: Array = classes[:, -1]
    if activation == "sigmoid":
        scores = 1 / (1 + np.exp(-np.clip(scores, -700, 700)))
    return scores
