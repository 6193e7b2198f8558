"""From the outputs of an encoder to vectors of unit length."""

from __future__ import annotations

from typing import Literal

import numpy as np

from slipstream.router.api.tensors.models.tensor_arrays import Array

Pooling = Literal["auto", "none", "mean", "max", "cls", "last"]
SMALLEST = 1e-12  # of a length that is divided by


def pooled(states: Array, mask: Array | None, pooling: Pooling) -> Array:
    """One vector for each row. `states` are [rows, size], or [rows, tokens, size], of which `mask` [rows, tokens] says
    where the tokens are; None: everywhere. Raises ValueError."""
    states = np.asarray(states, np.float32)
    if states.ndim == 2:
        return states
    if states.ndim != 3 or pooling == "none":
        raise ValueError(f"has the shape {list(states.shape)}, and pooling is {pooling}")
    if mask is None or mask.shape != states.shape[:2]:
        mask = np.ones(states.shape[:2], np.int64)
    return of_tokens(states, mask, pooling)


def of_tokens(states: Array, mask: Array, pooling: Pooling) -> Array:
    vectors: Array
    if pooling == "cls":
        vectors = states[:, 0]
    elif pooling == "last":
        last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
        vectors = states[np.arange(len(states)), last]
    elif pooling == "max":
        vectors = np.where(mask[:, :, None] > 0, states, -np.inf).max(axis=1)
    else:
        weights = mask[:, :, None].astype(np.float32)
        vectors = (states * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
    return vectors


def unit_vectors(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: Array = vectors / np.maximum(lengths, SMALLEST)
    return units
